// Package guests admits processes of other containers of the pod, which act in this container on behalf of the
// operator. Such a process, a guest, shares the network, including the names of abstract sockets, with this container,
// but not the PID namespace. So the kernel reports the PID 0 for a guest, which no process of this container can have.
// The operator admits guests for a limited time. A token keeps out the pod's other containers. It also proves to the
// guest that it is connected to PID 1, because another process could listen on a socket of the same name before PID 1
// does. Open guests.go first, which has the admissions and connections. handshake.go verifies the token.
package guests
