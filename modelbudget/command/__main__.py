"""`python -m modelbudget.command` is the command."""

from modelbudget.command.app import main

if __name__ == "__main__":
    main()
