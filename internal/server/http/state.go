package http

import (
	"errors"

	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// keepDone saves the clients' attachments after a request was carried out. The
// request is not undone if that fails, so the error begins with what, the word
// for the completed request.
func keepDone(k *saved.Store, what string) error {
	err := k.Keep()
	var wire *api.Error
	if errors.As(err, &wire) {
		e := *wire
		e.Message = what + ", but " + e.Message
		return &e
	}
	return err
}

// forgetPending removes pending attachments with one of these names. If it finds
// none, it returns err, which says that there is no such probe or script.
// Otherwise the error also says that they are forgotten.
func forgetPending(k *saved.Store, err error, script bool, names ...string) error {
	if !k.Forget(script, names...) {
		return err
	}
	k.MarkChanged()
	e := *toAPI(err)
	e.Message += ": it waited to be attached again (--state), and is forgotten now"
	e.Detail = ""
	return &e
}

// stateUsers are the users that may own the folder of --state, in addition to
// the daemon's user.
func (o *options) stateUsers() []int {
	if o.user.asked == "" {
		return nil
	}
	return []int{o.user.UID}
}
