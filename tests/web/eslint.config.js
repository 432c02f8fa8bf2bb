import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2025, globals: globals.browser },
    rules: { "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_", ignoreRestSiblings: true }] },
  },
  { files: ["**/*.mjs", "**/*.config.js", "tests/web/bundle.js"], languageOptions: { globals: { ...globals.node, ...globals.browser } } },
  { ignores: ["**/axe-core/**", "**/node_modules/**", "srb/web/vendor/**"] },
];
