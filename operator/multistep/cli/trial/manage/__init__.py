"""`multistep list`, `show`, `stop`, `retry` and `delete`.

list_and_show      `list`, `show`
stop_and_delete    `stop`, `delete`
retry              `retry`
"""
