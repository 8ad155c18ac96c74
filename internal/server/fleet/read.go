package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// AllDefinitions stands for all definitions' IDs.
const AllDefinitions = "*"

// malformed is returned by the functions that Snapshots and Events call, for
// invalid records: the message is counted in ForeignMessages, and the next one
// is read.
var malformed = errors.New("records that make no sense")

// Snapshots calls each with the last maps of each run of a definition. Maps that
// are published during the call may be included. A run's maps may come twice;
// the ones with the higher Seq count.
func (n *Network) Snapshots(ctx context.Context, def string, each func(Head, []byte) error) error {
	return n.read(ctx, mapsStream, mapsSubject(def, "*"), each)
}

// Events calls each with the kept messages that runs of a definition have
// published, each message once.
func (n *Network) Events(ctx context.Context, def string, each func(Head, []byte) error) error {
	last := map[string]uint64{}
	return n.read(ctx, eventsStream, eventsSubject(def, "*"), func(h Head, records []byte) error {
		run := h.ID + "." + h.Run
		if h.Seq <= last[run] {
			return nil // a duplicate, so late that the server did not recognize it
		}
		last[run] = h.Seq
		return each(h, records)
	})
}

// quiet is how long to wait for a message before asking whether there are more.
const quiet = 2 * time.Second

// errStuck: a server does not send the messages that it has.
var errStuck = fmt.Errorf("nothing has come for %v", changeTime)

// read calls each with the messages that a stream has at a subject.
func (n *Network) read(ctx context.Context, stream, subject string, each func(Head, []byte) error) error {
	fail := func(err error) error {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("read what the fleet has published: %w", keepsNothingError(err))
	}
	end := uint64(0) // later messages are not waited for
	c, err := retry(ctx, readTime, func(ctx context.Context) (jetstream.Consumer, error) {
		s, err := n.js.Stream(ctx, stream)
		if err != nil {
			return nil, err
		}
		end = s.CachedInfo().State.LastSeq
		return s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}, InactiveThreshold: time.Minute})
	})
	if err != nil {
		return fail(err)
	}
	if i := c.CachedInfo(); i == nil || i.NumPending == 0 {
		return nil
	}
	it, err := c.Messages()
	if err != nil {
		return fail(err)
	}
	defer it.Stop()
	for last := time.Now(); ; {
		wait, cancel := context.WithTimeout(ctx, quiet)
		m, err := it.Next(jetstream.NextContext(wait))
		cancel()
		switch {
		case err != nil && ctx.Err() != nil:
			return fail(err)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
			// Pending messages may have been removed from the stream since.
			ask, cancel := context.WithTimeout(ctx, askTime)
			i, err := c.Info(ask)
			cancel()
			switch {
			case err == nil && i.NumPending == 0:
				return nil
			case time.Since(last) > changeTime:
				return fail(errors.Join(errStuck, err))
			}
			continue
		case err != nil:
			return fail(err)
		}
		last = time.Now()
		meta, err := m.Metadata()
		if err != nil {
			return fail(err)
		}
		h, records, err := unpack(m.Data())
		if h.Kept = meta.Timestamp; err == nil {
			if err = each(h, records); err != nil && !errors.Is(err, malformed) {
				return err
			}
		}
		if err != nil {
			n.other.Add(1)
			n.log.Debug("fleet: a message that makes no sense", "stream", stream, "err", err)
		}
		if meta.NumPending == 0 || meta.Sequence.Stream >= end {
			return nil
		}
	}
}
