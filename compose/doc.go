// Command compose reads a task's compose file with the library of Docker Compose, and prints the model that Multistep
// runs. It reads a Request as JSON from stdin, and opens no file. The operator's Request has the texts that it needs
// (operator/multistep/sources/task/read_compose.py). The Answer, as JSON on stdout, has refusals, the env_files that
// are still missing, or the model.
//
// Open read.go first: it converts the file to the model, and mounts.go converts the mounts. keys.go decides the outcome
// of each key, walk.go applies these outcomes to the file, and refuse.go refuses values that a pod cannot have.
// model.go defines the Request and the Answer, limits.go limits this process, and main.go reads the command line.
package main
