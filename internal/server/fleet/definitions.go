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

// Definition is a task for daemons of the fleet, including daemons that join
// later.
type Definition struct {
	Name  string    `json:"name"`
	ID    string    `json:"id"`    // different for each definition that ever had the name
	Where string    `json:"where"` // conditions on the daemons
	Since time.Time `json:"since"`
	By    string    `json:"by"` // who has defined it, according to the client
}

// Index is the list of all definitions, by name.
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
	// maxDefinitions bounds the number of definitions.
	maxDefinitions = 1000
	// maxBody bounds the text of a definition, in bytes.
	maxBody = 512 << 10
)

// Keys of the bucket. The index has everything that changes. The text of a
// definition never changes; its key is the ID.
const (
	indexKey = "index"
	bodyKey  = "body." // and the ID
)

// changedSubject receives the revision of each changed index.
const changedSubject = prefix + ".changed"

var (
	// ErrDefined: another definition has the name.
	ErrDefined = errors.New("the fleet has a definition of that name")
	// ErrUndefined: no definition has the name.
	ErrUndefined = errors.New("the fleet has no definition of that name")
)

// Definitions returns the present index, as one server knows it.
func (n *Network) Definitions(ctx context.Context) (x Index, err error) {
	e, err := n.value(ctx, indexKey)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return x, nil
	case err != nil:
		return x, fmt.Errorf("the fleet's definitions: %w", keepsNothingError(err))
	}
	return readIndex(e.Value(), e.Revision())
}

// value reads the bucket's value of a key.
func (n *Network) value(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	return retry(ctx, readTime, func(ctx context.Context) (jetstream.KeyValueEntry, error) {
		kv, err := n.openKept(ctx)
		if err != nil {
			return nil, err
		}
		return kv.Get(ctx, key)
	})
}

// readIndex decodes an index from the bucket.
func readIndex(b []byte, revision uint64) (x Index, err error) {
	if err := json.Unmarshal(b, &x); err != nil {
		return Index{}, fmt.Errorf("the fleet's definitions: %w", err)
	}
	x.Definitions = slices.DeleteFunc(x.Definitions, func(d Definition) bool { return !serviceID.MatchString(d.ID) })
	x.Definitions = x.Definitions[:min(len(x.Definitions), maxDefinitions)]
	for i := range x.Definitions { // a peer's text must be safe to print in one line
		d := &x.Definitions[i]
		d.Name, d.Where, d.By = cleanLabel(d.Name), plainText(d.Where), plainText(d.By)
	}
	x.Revision = revision
	return x, nil
}

// errRaced: a change lost against other changes until its time was over.
var errRaced = errors.New("the fleet's definitions are changed by others all the time")

// errMade: the change was made already.
var errMade = errors.New("it was made")

// change changes the index by f, as often as necessary: another client may
// change it at the same time, or a server has made the change and its answer was
// lost. f detects the latter and returns errMade.
func (n *Network) change(ctx context.Context, f func(*Index) error) (Index, error) {
	x, err := retry(ctx, changeTime, func(ctx context.Context) (Index, error) {
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
	// A daemon that misses the message looks by itself later.
	_ = n.nc.Publish(changedSubject, strconv.AppendUint(nil, x.Revision, 10))
	flush, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_ = n.nc.FlushWithContext(flush)
	return x, nil
}

// replace replaces the index with x's revision; revision 0 means that there is
// no index yet.
func (n *Network) replace(ctx context.Context, x Index) (revision uint64, err error) {
	b, err := json.Marshal(x)
	if err != nil {
		return 0, err
	}
	kv, err := n.openKept(ctx)
	if err != nil {
		return 0, err
	}
	if revision, err = kv.Update(ctx, indexKey, b, x.Revision); err != nil {
		return 0, fmt.Errorf("change the fleet's definitions: %w", keepsNothingError(err))
	}
	return revision, nil
}

// sleep waits for d, or until ctx ends.
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

// Define has daemons do what body describes, in a form that they know how to
// read. It fills in d's ID and Since.
func (n *Network) Define(ctx context.Context, d Definition, body []byte) (Definition, Index, error) {
	if len(body) > maxBody {
		return d, Index{}, fmt.Errorf("a definition of %d bytes: more than %d", len(body), maxBody)
	}
	d.ID, d.Since = nuid.Next(), time.Now()
	if _, err := retry(ctx, changeTime, func(ctx context.Context) (uint64, error) {
		kv, err := n.openKept(ctx)
		if err != nil {
			return 0, err
		}
		return kv.Put(ctx, bodyKey+d.ID, body) // the key belongs to this definition only
	}); err != nil {
		return d, Index{}, fmt.Errorf("define %s: %w", d.Name, keepsNothingError(err))
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
		n.forget(ctx, d) // the index does not have it
	}
	return d, x, err
}

// forget deletes the text of a definition. If that fails, the text stays unused
// and takes room in the bucket.
func (n *Network) forget(ctx context.Context, d Definition) {
	_, err := retry(ctx, readTime, func(ctx context.Context) (struct{}, error) {
		kv, err := n.openKept(ctx)
		if err == nil {
			err = kv.Purge(ctx, bodyKey+d.ID)
		}
		return struct{}{}, err
	})
	if err != nil {
		n.log.Warn("fleet: a body stays that no definition has", "id", d.ID, "err", err)
	}
}

// Withdraw removes a definition.
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

// Body returns the text of a definition. It returns jetstream's error if the
// text is gone, or not there yet.
func (n *Network) Body(ctx context.Context, d Definition) ([]byte, error) {
	e, err := n.value(ctx, bodyKey+d.ID)
	if err != nil {
		return nil, fmt.Errorf("definition %s: %w", d.Name, keepsNothingError(err))
	}
	return e.Value(), nil
}

// Times of a daemon that follows definitions.
const (
	// lookEvery, and up to half as much more, is how often the definitions are
	// read in case a notification of a change was lost.
	lookEvery = 30 * time.Second
	// againTime, and up to as much more, is the wait after a failed look.
	againTime = 500 * time.Millisecond
	// maxTries is how often the definitions are read while a revision that was
	// announced is missing.
	maxTries = 20
)

// Follow calls changed with the definitions, at once and after each change,
// until ctx ends. If changed returns again, it is called again soon. A value on
// nudge makes Follow read the definitions now. Daemons have no consumers of
// their own on the server: each change costs one request per daemon.
func (n *Network) Follow(ctx context.Context, nudge <-chan struct{}, changed func(x Index) (again bool)) error {
	told := make(chan *nats.Msg, 64)
	sub, err := n.nc.ChanSubscribe(changedSubject, told)
	if err != nil {
		return fmt.Errorf("follow the fleet's definitions: %w", err)
	}
	defer sub.Unsubscribe()
	back := n.nc.StatusChanged(nats.CONNECTED)
	defer n.nc.RemoveStatusListener(back)
	wanted, tries := uint64(0), 0 // that revision exists, although the server may not know it yet
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
				wanted = 0 // the announcement may have been false
			}
		case <-ctx.Done():
			return nil
		}
	}
}
