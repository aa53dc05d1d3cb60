// Package inspect finds traces of tampering with a verification that runs in the agent's container. They are changed
// programs and libraries, files that run code in other programs, files planted for the verifier, and processes that the
// agent left. Baseline records which files exist before the first agent runs, and the time. Inspect reports later
// changes that could affect the verification. The time of a change is a file's ctime, which no process in the container
// can set. Inspect does not report files whose content has the digest in the package database, because a package
// manager installed them. Root can forge a database, so an inspection finds evidence but proves nothing. Open
// inspect.go first, then search.go, which runs the parts of an inspection and collects its findings. programs.go,
// libraries.go, python.go and hooks.go each find one kind of change. packages.go decides which files a package manager
// installed, tree.go reads the container's files, and root.go lists unusual programs that run as root.
package inspect
