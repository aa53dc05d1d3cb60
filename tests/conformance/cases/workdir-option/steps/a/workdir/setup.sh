pwd > setup
