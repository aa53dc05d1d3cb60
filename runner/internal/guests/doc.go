// Package guests admits processes of other containers of the pod, which act in this container on behalf of the
// operator.
//
// Such a process, a guest, shares the network, including the names of abstract sockets, with this container, but not
// the PID namespace. So the kernel reports the PID 0 for it, which no process of this container can have. The operator
// admits guests for a limited time. A token keeps out the pod's other containers, and proves to the guest that it is
// connected to PID 1: before PID 1 listens on its socket, another process could listen on a socket of the same name.
//
// Open guests.go first: it holds the admissions and connections. handshake.go verifies the token.
package guests
