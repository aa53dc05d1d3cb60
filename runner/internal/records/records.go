package records

import (
	"context"
	"slices"
	"sync"
	"time"

	"multistep.dev/runner/internal/wire"
)

// Record describes a running or finished operation.
type Record struct {
	ID           string   `json:"id"`
	Op           string   `json:"op"`
	State        string   `json:"state"`
	StartedAt    float64  `json:"startedAt"`
	EndedAt      *float64 `json:"endedAt"`
	Acknowledged bool     `json:"acknowledged"`
	Result       any      `json:"result"`
}

const (
	running = "running"
	done    = "done"
)

type entry struct {
	record Record
	ended  chan struct{}
}

// Store has the records. Several sessions can use it concurrently.
type Store struct {
	mu      sync.Mutex
	entries map[string]*entry
	order   []string
	busy    map[string]chan struct{} // ids that a session has reserved in order to create their record
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{entries: map[string]*entry{}, busy: map[string]chan struct{}{}}
}

// Start creates a running record with this id. If a record exists, Start returns it, and fresh is false.
func (s *Store) Start(id, op string) (record Record, fresh bool, err *wire.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if record, found, err := s.find(id, op); found || err != nil {
		return record, false, err
	}
	return s.add(Record{ID: id, Op: op, State: running, StartedAt: wire.Epoch(time.Now())}).record, true, nil
}

// Restore adds a finished record that an earlier process stored.
func (s *Store) Restore(record Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := wire.Epoch(time.Now())
	if record.State, record.Acknowledged = done, true; record.EndedAt == nil {
		record.StartedAt, record.EndedAt = now, &now
	}
	s.add(record)
}

// End marks a running record as done and sets its result.
func (s *Store) End(id string, result any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, now := s.entries[id], wire.Epoch(time.Now())
	entry.record.State, entry.record.EndedAt, entry.record.Result = done, &now, result
	close(entry.ended)
}

// Once returns the record with this id. If it does not exist, Once calls do, and creates the record with its result. Concurrent
// calls for the same id wait. If do fails, Once creates no record, and the next call runs do again.
func (s *Store) Once(id, op string, do func() (any, *wire.Error)) (Record, *wire.Error) {
	free := s.reserve(id)
	defer free()
	if record, found, err := s.Find(id, op); found || err != nil {
		return record, err
	}
	started := wire.Epoch(time.Now())
	result, err := do()
	if err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if record, found, err := s.find(id, op); found || err != nil {
		return record, err // a concurrent call of Start created the record while do was running
	}
	now := wire.Epoch(time.Now())
	return s.add(Record{id, op, done, started, &now, true, result}).record, nil
}

// reserve reserves the id until the caller calls free. It first waits until other sessions have freed the id.
func (s *Store) reserve(id string) (free func()) {
	for {
		s.mu.Lock()
		other, taken := s.busy[id]
		if !taken {
			mine := make(chan struct{})
			s.busy[id] = mine
			s.mu.Unlock()
			return func() { s.release(id, mine) }
		}
		s.mu.Unlock()
		<-other
	}
}

func (s *Store) release(id string, mine chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, id)
	close(mine)
}

// Find returns the record with this id, if it exists. It returns a conflict if the record belongs to another op.
func (s *Store) Find(id, op string) (Record, bool, *wire.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(id, op)
}

func (s *Store) find(id, op string) (Record, bool, *wire.Error) {
	entry, found := s.entries[id]
	if !found {
		return Record{}, false, nil
	}
	if entry.record.Op != op {
		return Record{}, true, wire.Errorf(wire.CodeConflict, "%q is a %s, not a %s", id, entry.record.Op, op)
	}
	return entry.record, true, nil
}

func (s *Store) add(record Record) *entry {
	added := &entry{record, make(chan struct{})}
	if record.State == done {
		close(added.ended)
	}
	s.entries[record.ID] = added
	s.order = append(s.order, record.ID)
	return added
}

// Wait waits until the operation is finished or ctx is done, and returns the record.
func (s *Store) Wait(ctx context.Context, id string) (Record, *wire.Error) {
	s.mu.Lock()
	entry, found := s.entries[id]
	s.mu.Unlock()
	if !found {
		return Record{}, wire.Errorf(wire.CodeNotFound, "nothing has the id %q", id)
	}
	select {
	case <-entry.ended:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return entry.record, nil
}

// Get returns the record in its current state.
func (s *Store) Get(id string) (Record, *wire.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if entry, found := s.entries[id]; found {
		return entry.record, nil
	}
	return Record{}, wire.Errorf(wire.CodeNotFound, "nothing has the id %q", id)
}

// Acknowledge marks a finished record as received by the operator.
func (s *Store) Acknowledge(id string) (Record, *wire.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry, found := s.entries[id]
	switch {
	case !found:
		return Record{}, wire.Errorf(wire.CodeNotFound, "nothing has the id %q", id)
	case entry.record.State == running:
		return Record{}, wire.Errorf(wire.CodeConflict, "%q still runs and has no result to acknowledge", id)
	}
	entry.record.Acknowledged = true
	return entry.record, nil
}

// All returns all records with their results, in the order of creation. From them the operator reconstructs the trial's progress.
func (s *Store) All() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Record, 0, len(s.order))
	for _, id := range s.order {
		all = append(all, s.entries[id].record)
	}
	return all
}

// Settled returns whether the operator has acknowledged all finished records.
func (s *Store) Settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(s.order, func(id string) bool {
		record := s.entries[id].record
		return record.State == done && !record.Acknowledged
	})
}
