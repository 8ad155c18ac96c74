package fleet

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// askTime is how long a server may take for one answer.
	askTime = 5 * time.Second
	// readTime is how long a read is retried.
	readTime = 2 * askTime
	// changeTime is how long a change is retried.
	changeTime = 30 * time.Second
	// restTime, and up to as much more, is between two requests.
	restTime = 50 * time.Millisecond
)

// retry repeats a request until it succeeds, fails for a reason that another
// request would not change, or runs out of time. While servers elect a leader,
// no server answers, and a request that was sent then is never answered: it has
// to be sent again.
func retry[T any](ctx context.Context, within time.Duration, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		one, end := context.WithTimeout(ctx, askTime)
		v, err := ask(one)
		end()
		if err == nil || !passing(err) || sleep(ctx, restTime+rand.N(restTime)) != nil {
			return v, err
		}
	}
}

// away are the error codes of servers that have no leader at the moment
// (nats-server's errors.json).
var away = []jetstream.ErrorCode{
	10004, // incomplete results
	10008, // JetStream system temporarily unavailable
	10009, // not the leader
	10075, // peers are being reassigned
	10163, // expected last sequence temporarily unavailable
}

// passing reports whether an error may go away when the request is repeated.
func passing(err error) bool {
	var of *jetstream.APIError
	if errors.As(err, &of) {
		return slices.Contains(away, of.ErrorCode)
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting)
}
