"""The verbs, one module for each family: what the command line says, what kubectl is asked, what is shown."""
