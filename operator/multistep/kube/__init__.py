"""The client of the API server. Objects are plain dicts.

Its calls return objects or exec streams, or raise an error of multistep.errors. Every call has a timeout. Watches are in
multistep.client.reconnecting_watch, because kopf watches for the operator. Open cluster_protocols.py, which lists the calls that
the operator makes, and client.py first.

client, cluster_protocols    the client, and protocols of it, which tests implement in memory
requests, request_limit      timeouts, retries and errors, and the adaptive limit of concurrent requests
connection                   address, TLS, credentials
list_objects, exec           lists, page by page, and exec sessions
resources                    kinds and their paths
lease, shard                 leader election, and the selection of trials that this operator reconciles
"""
