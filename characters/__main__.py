from characters.cli.main import main

main()
