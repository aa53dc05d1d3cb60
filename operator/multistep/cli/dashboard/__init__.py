"""`multistep dashboard`: sweeps and trials live in the browser, from a server on this machine.

command    options
server     HTTP server; page/ has its files
board      rows, updated by watches; rows: a sweep or trial as a row
logs       output of a trial's phases
"""
