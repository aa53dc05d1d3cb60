"""The one client of the API server. Objects are plain dicts.

In: kind, namespace, name, manifest. Out: objects, watch events, exec streams, or an error of multistep.errors. Every call has a
timeout. Open cluster_protocols.py (what other packages may call) and client.py first.

client, cluster_protocols    the client; its protocols, which tests implement in memory
requests, request_limit      timeouts, retries, errors; fewer requests while the server is overloaded
connection                   address, TLS, credentials
watch, exec                  lists and watches; exec sessions
resources                    kinds and their paths
lease, shard                 leader election; which trials this operator reconciles
"""
