package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Definition is something that daemons of the fleet are to do, also those that come later.
type Definition struct {
	Name  string    `json:"name"`
	ID    string    `json:"id"`    // another one for each that ever had the name
	Where string    `json:"where"` // in which daemons
	Since time.Time `json:"since"`
	By    string    `json:"by"` // who has said so, as he says himself
}

// Index is what there is of definitions, by name.
type Index struct {
	Revision    uint64       `json:"-"` // higher with each change
	Definitions []Definition `json:"definitions"`
}

// Find returns the definition of that name, or nil.
func (x *Index) Find(name string) *Definition {
	for i := range x.Definitions {
		if x.Definitions[i].Name == name {
			return &x.Definitions[i]
		}
	}
	return nil
}

const (
	// maxDefinitions bounds how many there are.
	maxDefinitions = 1000
	// maxBody bounds what one says, in bytes.
	maxBody = 512 << 10
)

// Keys of the bucket. Who reads the index has all that changes; what a definition says never does, by its ID.
const (
	indexKey = "index"
	bodyKey  = "body." // and the ID
)

// changedSubject is told the revision of an index that was changed.
const changedSubject = prefix + ".changed"

var (
	// ErrDefined is for a name that another definition has.
	ErrDefined = errors.New("the fleet has a definition of that name")
	// ErrUndefined is for a name that none has.
	ErrUndefined = errors.New("the fleet has no definition of that name")
)

// Definitions returns what there is now, as one server knows it.
func (n *Network) Definitions(ctx context.Context) (x Index, err error) {
	e, err := n.value(ctx, indexKey)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return x, nil
	case err != nil:
		return x, fmt.Errorf("the fleet's definitions: %w", keptNothing(err))
	}
	return readIndex(e.Value(), e.Revision())
}

// value reads what the bucket has at a key.
func (n *Network) value(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	return again(ctx, readTime, func(ctx context.Context) (jetstream.KeyValueEntry, error) {
		kv, err := n.kept(ctx)
		if err != nil {
			return nil, err
		}
		return kv.Get(ctx, key)
	})
}

// readIndex reads an index as the bucket has it.
func readIndex(b []byte, revision uint64) (x Index, err error) {
	if err := json.Unmarshal(b, &x); err != nil {
		return Index{}, fmt.Errorf("the fleet's definitions: %w", err)
	}
	x.Definitions = slices.DeleteFunc(x.Definitions, func(d Definition) bool { return !serviceID.MatchString(d.ID) })
	x.Definitions = x.Definitions[:min(len(x.Definitions), maxDefinitions)]
	for i := range x.Definitions { // whatever a peer has written there is a part of lines
		d := &x.Definitions[i]
		d.Name, d.Where, d.By = tidied(d.Name), Plain(d.Where), Plain(d.By)
	}
	x.Revision = revision
	return x, nil
}

// errRaced is for a change that has come behind another one.
var errRaced = errors.New("the fleet's definitions are changed by others all the time")

// errMade is for a change that is there already.
var errMade = errors.New("it was made")

// change changes the index by f, as often as need be: somebody else may be doing so, or a server has done it and its answer was lost, which f
// finds out (errMade).
func (n *Network) change(ctx context.Context, f func(*Index) error) (Index, error) {
	x, err := again(ctx, changeTime, func(ctx context.Context) (Index, error) {
		for {
			x, err := n.Definitions(ctx)
			if err == nil {
				err = f(&x)
			}
			if errors.Is(err, errMade) {
				return x, nil
			}
			if err != nil {
				return x, err
			}
			if x.Revision, err = n.replace(ctx, x); !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
				return x, err
			}
			if sleep(ctx, rand.N(20*time.Millisecond)) != nil {
				return x, fmt.Errorf("%w: %w", errRaced, context.DeadlineExceeded)
			}
		}
	})
	if err != nil {
		return x, err
	}
	// Who is not told looks for himself.
	_ = n.nc.Publish(changedSubject, strconv.AppendUint(nil, x.Revision, 10))
	flush, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_ = n.nc.FlushWithContext(flush)
	return x, nil
}

// replace writes an index in the place of the one with its revision; 0 is that of a key that is not there.
func (n *Network) replace(ctx context.Context, x Index) (revision uint64, err error) {
	b, err := json.Marshal(x)
	if err != nil {
		return 0, err
	}
	kv, err := n.kept(ctx)
	if err != nil {
		return 0, err
	}
	if revision, err = kv.Update(ctx, indexKey, b, x.Revision); err != nil {
		return 0, fmt.Errorf("change the fleet's definitions: %w", keptNothing(err))
	}
	return revision, nil
}

// sleep waits so long, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Define has daemons do what body says, which they know how to read. d's ID and Since are filled in.
func (n *Network) Define(ctx context.Context, d Definition, body []byte) (Definition, Index, error) {
	if len(body) > maxBody {
		return d, Index{}, fmt.Errorf("a definition of %d bytes: more than %d", len(body), maxBody)
	}
	d.ID, d.Since = nuid.Next(), time.Now()
	if _, err := again(ctx, changeTime, func(ctx context.Context) (uint64, error) {
		kv, err := n.kept(ctx)
		if err != nil {
			return 0, err
		}
		return kv.Put(ctx, bodyKey+d.ID, body) // nobody else has that key
	}); err != nil {
		return d, Index{}, fmt.Errorf("define %s: %w", d.Name, keptNothing(err))
	}
	x, err := n.change(ctx, func(x *Index) error {
		was := x.Find(d.Name)
		switch {
		case was != nil && was.ID == d.ID:
			return errMade
		case was != nil:
			return fmt.Errorf("%w: %s", ErrDefined, d.Name)
		case len(x.Definitions) >= maxDefinitions:
			return fmt.Errorf("the fleet has %d definitions", len(x.Definitions))
		}
		x.Definitions = append(x.Definitions, d)
		slices.SortFunc(x.Definitions, func(a, b Definition) int { return cmp.Compare(a.Name, b.Name) })
		return nil
	})
	if err != nil {
		n.forget(ctx, d) // nobody knows of it
	}
	return d, x, err
}

// forget takes away what a definition says. If it stays, nobody asks for it, and the bucket has that much less room.
func (n *Network) forget(ctx context.Context, d Definition) {
	_, err := again(ctx, readTime, func(ctx context.Context) (struct{}, error) {
		kv, err := n.kept(ctx)
		if err == nil {
			err = kv.Purge(ctx, bodyKey+d.ID)
		}
		return struct{}{}, err
	})
	if err != nil {
		n.log.Warn("fleet: a body stays that no definition has", "id", d.ID, "err", err)
	}
}

// Withdraw takes a definition back.
func (n *Network) Withdraw(ctx context.Context, name string) (d Definition, x Index, err error) {
	x, err = n.change(ctx, func(x *Index) error {
		was := x.Find(name)
		switch {
		case was == nil && d.ID != "", was != nil && d.ID != "" && was.ID != d.ID:
			return errMade
		case was == nil:
			return fmt.Errorf("%w: %s", ErrUndefined, name)
		}
		d = *was
		x.Definitions = slices.DeleteFunc(x.Definitions, func(d Definition) bool { return d.Name == name })
		return nil
	})
	if err == nil {
		n.forget(ctx, d)
	}
	return d, x, err
}

// Body is what a definition says. It is jetstream's error when it is gone, or not there yet.
func (n *Network) Body(ctx context.Context, d Definition) ([]byte, error) {
	e, err := n.value(ctx, bodyKey+d.ID)
	if err != nil {
		return nil, fmt.Errorf("definition %s: %w", d.Name, keptNothing(err))
	}
	return e.Value(), nil
}

// Times of who follows definitions.
const (
	// lookEvery is how often it is looked for changes that nobody was told of, and up to half as much more.
	lookEvery = 30 * time.Second
	// againTime is after which it is looked again where the last look has failed, and up to as much more.
	againTime = 500 * time.Millisecond
	// maxTries is how often it is looked for a revision that somebody has told of.
	maxTries = 20
)

// Follow calls changed with the definitions, at once and behind each change, until ctx ends; with again it wants to be
// called again soon. Nudge has it look now. No daemon has a consumer of its own on the server: one request
// each is all that a change costs.
func (n *Network) Follow(ctx context.Context, nudge <-chan struct{}, changed func(x Index) (again bool)) error {
	told := make(chan *nats.Msg, 64)
	sub, err := n.nc.ChanSubscribe(changedSubject, told)
	if err != nil {
		return fmt.Errorf("follow the fleet's definitions: %w", err)
	}
	defer sub.Unsubscribe()
	back := n.nc.StatusChanged(nats.CONNECTED)
	defer n.nc.RemoveStatusListener(back)
	wanted, tries := uint64(0), 0 // that revision is there, although the server asked may not know it yet
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := lookEvery + rand.N(lookEvery/2)
		if n.Connected() {
			look, cancel := context.WithTimeout(ctx, askTime)
			x, err := n.Definitions(look)
			cancel()
			again := err != nil && !errors.Is(err, ErrKeepsNothing) || x.Revision < wanted
			if err == nil && changed(x) || again {
				wait = againTime + rand.N(againTime)
			}
		}
		timer.Reset(wait)
		select {
		case m := <-told:
			if rev, err := strconv.ParseUint(string(m.Data), 10, 64); err == nil && rev < 1<<62 {
				wanted, tries = max(wanted, rev), 0
			}
		case <-back:
		case <-nudge:
		case <-timer.C:
			if tries++; tries == maxTries {
				wanted = 0 // whoever has told it may have lied
			}
		case <-ctx.Done():
			return nil
		}
	}
}
