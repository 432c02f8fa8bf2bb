"""The options: flags, `SRB_...` variables and TOML keys become a `Settings`, or a `SettingsError`."""
