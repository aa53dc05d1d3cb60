// Command compose reads a task's compose file with the library of Docker Compose, and prints the model that Multistep
// runs. It reads a Request as JSON from stdin and opens no file: the operator gives it the texts that it needs
// (operator/multistep/sources/task/read_compose.py). It prints an Answer as JSON: refusals, the env_files that it still
// needs, or the model.
//
// Open read.go first: it converts the file to the model, and mounts.go converts the mounts. keys.go decides the outcome
// of each key, walk.go applies these outcomes to the file, and refuse.go refuses values that a pod cannot have.
// model.go defines the Request and the Answer, limits.go bounds this process, and main.go reads the command line.
package main
