"""`multistep dashboard`: sweeps and trials live in the browser, from a server on this machine.

command    options
server     HTTP server with a token, output of trials; page/ has its files
board      rows of sweeps and trials, updated by watches
"""
