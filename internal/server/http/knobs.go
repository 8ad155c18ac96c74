package http

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (in *inspector) getKnobs(w http.ResponseWriter, r *http.Request) error {
	on := in.probes.Armed()
	writeJSON(w, http.StatusOK, api.Knobs{Enabled: &on})
	return nil
}

func (ph *probeHost) putKnobs(w http.ResponseWriter, r *http.Request) error {
	var k api.Knobs
	if err := readBody(w, r, &k, false); err != nil {
		return err
	}
	if k.Enabled == nil {
		return badValue("enabled is missing")
	}
	if err := ph.probes.SetArmed(*k.Enabled); err != nil {
		return err
	}
	if err := keepDone(ph.state, "done"); err != nil {
		return err
	}
	return ph.getKnobs(w, r)
}

func (in *inspector) getBlacklist(w http.ResponseWriter, r *http.Request) error {
	list := api.Blacklist{Entries: []api.BlacklistEntry{}}
	for _, f := range in.guest.Engine().Blacklist() {
		list.Entries = append(list.Entries, api.BlacklistEntry{Start: api.Hex(f.Start), End: api.Hex(f.End), Symbol: f.Name, Reason: f.Why})
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// getKernelBlacklist answers in the format of the kernel's kprobes/blacklist.
func (in *inspector) getKernelBlacklist(w http.ResponseWriter, r *http.Request) error {
	return writeText(w, func(b *bufio.Writer) error { return probe.WriteBlacklist(b, in.guest.Engine().Blacklist()) })
}

// getKernelList answers in the format of the kernel's kprobes/list.
func (in *inspector) getKernelList(w http.ResponseWriter, r *http.Request) error {
	return writeText(w, func(b *bufio.Writer) error {
		for i := range in.guest.Engine().All() {
			if !i.Pending { // the kernel shows it only among its events
				fmt.Fprintln(b, i)
			}
		}
		for _, i := range in.guest.Engine().Watches() {
			fmt.Fprintln(b, i)
		}
		return nil
	})
}

// getKernelProfile answers in the format of tracefs' kprobe_profile.
func (in *inspector) getKernelProfile(w http.ResponseWriter, r *http.Request) error {
	return writeText(w, func(b *bufio.Writer) error {
		for p := range wireProbes(in.probes.Infos(in.probes.Probes())) {
			_, event, _ := strings.Cut(p.Name, "/")
			fmt.Fprintf(b, "  %-44s %15d %15d\n", event, p.Stats.Hits, p.Stats.Missed)
		}
		return nil
	})
}
