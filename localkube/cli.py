"""The command line: `python3 -m localkube COMMAND`."""
import sys
from localkube import cluster
from localkube.config import load_config
from localkube.errors import LocalkubeError
def main():
    c=load_config()
    try:
        {'up':cluster.up,'down':cluster.down,'status':lambda c: print(cluster.states(c), cluster.health.problems(c))}[sys.argv[1]](c)
        print(f'export KUBECONFIG={c.paths.kubeconfig}')
    except LocalkubeError as e:
        print(e,file=sys.stderr); return e.exit_code
    return 0
