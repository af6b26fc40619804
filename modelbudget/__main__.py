"""`python -m modelbudget` is the command."""

from modelbudget.api.command.app import main

if __name__ == "__main__":
    main()
