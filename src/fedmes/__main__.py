from fedmes.cli import main

main()
