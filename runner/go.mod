module multistep.dev/runner

go 1.25
