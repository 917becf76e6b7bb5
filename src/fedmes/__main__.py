from fedmes.cli.app import main

main()
