"""A program: several commands of `flwr` in one process, since each would spend seconds on imports.

Its argument is a list of commands in JSON.
"""

import json
import os
import sys

if __name__ == "__main__":
    from click import ClickException
    from flwr.cli.app import app

    from fedmes.deployment import private

    private.connect("flwr", os.environ[private.SOCKET])
    try:
        for command in json.loads(sys.argv[1]):
            app(command, standalone_mode=False)
    except ClickException as error:
        sys.exit(error.format_message())
