// Remembers the users of phases, so that a checkpoint fails if one of them no longer exists.

package phase

import "sync"

// named has the names of the users of all phases that ran.
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

// KnowsUsers returns an error if the user of an earlier phase no longer exists. After a restore of a checkpoint without this user,
// no phase could run as the user.
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
