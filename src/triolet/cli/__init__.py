"""The commands: `triolet serve`, `chat`, `config show`, `doctor`, `pull`.

The only room that configures logging, handles Ctrl-C and exits the process.
"""
