"""The commands that find trials and sweeps and change them: `list`, `show`, `stop`, `delete` and `retry`, also below `sweep`.

list               `list` and `sweep list`: tables as `kubectl get` prints them
show               `show`
stop_and_delete    `stop`, `delete`, `sweep stop` and `sweep delete`
retry              `retry` and `sweep retry`
"""
