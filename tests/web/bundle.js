// Prints the page's editor as one module, with the licenses of its packages.

import { readFile } from "node:fs/promises";
import { stdout } from "node:process";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));

const { metafile, outputFiles } = await build({
  absWorkingDir: at("."),
  alias: { "style-mod": at("style_mod.js") },
  bundle: true,
  entryPoints: [at("../../srb/web/vendor/codemirror.ts")],
  format: "esm",
  metafile: true,
  minify: true,
  nodePaths: [at("node_modules")],
  target: "es2022",
  write: false,
});

const [{ inputs }] = Object.values(metafile.outputs);
const used = Object.entries(inputs).filter(([, { bytesInOutput }]) => bytesInOutput > 0);
const names = new Set(used.flatMap(([path]) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []));
const byText = new Map();
for (const name of [...names].sort()) {
  const { version } = JSON.parse(await readFile(at(`node_modules/${name}/package.json`), "utf8"));
  const license = (await readFile(at(`node_modules/${name}/LICENSE`), "utf8")).trim();
  byText.set(license, [...(byText.get(license) ?? []), `${name} ${version}`]);
}
const licenses = [...byText].map(([text, packages]) => `${packages.join(", ")}\n\n${text}`).join("\n\n");
stdout.write(`/* Made by tests/web/bundle.js of:\n\n${licenses}\n*/\n${outputFiles[0].text}`);
