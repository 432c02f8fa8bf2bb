"""What can be set, how it is read from flags, variables and TOML, and what refuses it.

`settings.py` has all options in one dataclass; begin with it. `engine_options.py` and `server_options.py` say what each
option means. `arguments.py` reads the command line, `removed.py` says what to do instead of a removed option, and
`extras.py` how to install what an option needs.

In: the command line, `SRB_...` variables, a TOML file. Out: `Settings`, or `SettingsError`.
"""
