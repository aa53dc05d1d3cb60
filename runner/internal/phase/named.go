// Remembers which users phases ran as, to notice before a checkpoint that one of them is gone.

package phase

import "sync"

// named holds the names of the users that phases ran as.
type named struct {
	mu    sync.Mutex
	users map[string]bool
}

func (n *named) add(user string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.users == nil {
		n.users = map[string]bool{}
	}
	n.users[user] = true
}

// KnowsUsers returns an error if a user that a phase ran as does not exist any more. After a restore of a checkpoint without this
// user, no phase could run as the user.
func (h *Host) KnowsUsers() error {
	h.named.mu.Lock()
	defer h.named.mu.Unlock()
	for user := range h.named.users {
		if _, err := h.User(user); err != nil {
			return err
		}
	}
	return nil
}
