"""What can be set, how it is read from flags, variables and TOML, and what refuses it.

`settings.py` has all options in one dataclass; begin with it. `engine_options.py` and `server_options.py` say what each
option means, and `removed.py` what to do without the options of older versions. `arguments.py` reads the command line,
and `extras.py` says how to install what an option needs.

In: the command line, `SRB_...` variables, a TOML file. Out: `Settings`, or `SettingsError`.
"""
