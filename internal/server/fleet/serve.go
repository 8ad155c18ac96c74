package fleet

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/spf13/pflag"
)

// Serve is the configuration of a fleet's server, from the flags of 'guestprobe
// fleet serve' for guestprobe-fleetd.
type Serve struct {
	Listen   string // address and port
	Store    string // folder
	Password string // file; "": in Store
	Cert     string // file, with Key
	Key      string
	Plain    bool   // without a certificate beyond this machine
	Config   string // file with nats-server's configuration, instead of all the above
	URLFile  string // written when clients are served
	Bounds   Bounds // of the stored scripts and their data
}

// Flags declares the flags.
func (s *Serve) Flags(f *pflag.FlagSet) {
	f.StringVar(&s.Listen, "listen", "127.0.0.1:4222", "serve on this `ADDRESS:PORT`; port 0 is any")
	f.StringVar(&s.Store, "store", "", "keep the fleet's data in this `folder` (default: $XDG_STATE_HOME/guestprobe/fleet, ~/.local/state/guestprobe/fleet, of root /var/lib/guestprobe/fleet)")
	f.StringVar(&s.Password, "password-file", "", "the `file` of the password that clients must have; it is made if it is not there (default: creds in the store)")
	f.StringVar(&s.Cert, "tls-cert", "", "`file` of the server's certificate; clients must speak TLS then")
	f.StringVar(&s.Key, "tls-key", "", "`file` of its key")
	f.BoolVar(&s.Plain, "plain", false, "serve without TLS on an address that is not on loopback: who sees the network sees the password")
	f.StringVar(&s.Config, "config", "", "do what this `file` says, a configuration of nats-server's, as for clusters, instead")
	s.Bounds = DefaultBounds()
	s.Bounds.Flags(f)
	f.StringVar(&s.URLFile, "url-file", "", "write the URL into this `file` when clients are served")
}

// Files are the flags whose values are files.
var Files = []string{"store", "password-file", "tls-cert", "tls-key", "config", "url-file"}

// Check fills in options that depend on others, and rejects options that do not
// go together.
func (s *Serve) Check(given func(flag string) bool, root bool, getenv func(string) string) error {
	if s.Config != "" {
		for _, flag := range []string{"listen", "store", "password-file", "tls-cert", "tls-key", "plain", "events-age", "events-bytes", "maps-age", "maps-bytes"} {
			if given(flag) {
				return fmt.Errorf("--%s: the file of --config says that, or 'guestprobe fleet init'", flag)
			}
		}
		return nil
	}
	if err := s.Bounds.Check(); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return fmt.Errorf("--listen %s: want ADDRESS:PORT", s.Listen)
	}
	if (s.Cert == "") != (s.Key == "") {
		return errors.New("--tls-cert and --tls-key go together")
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && s.Cert == "" && !s.Plain {
		return fmt.Errorf("--listen %s: not on loopback: say --tls-cert and --tls-key, or --plain", s.Listen)
	}
	if s.Store == "" {
		state := getenv("XDG_STATE_HOME")
		switch home := getenv("HOME"); {
		case root:
			s.Store = "/var/lib/guestprobe/fleet"
		case state != "":
			s.Store = filepath.Join(state, "guestprobe/fleet")
		case home != "":
			s.Store = filepath.Join(home, ".local/state/guestprobe/fleet")
		default:
			return errors.New("--store: neither $XDG_STATE_HOME nor $HOME says where it could be")
		}
	}
	if s.Password == "" {
		s.Password = filepath.Join(s.Store, "creds")
	}
	return nil
}

// Server is the program that serves.
const Server = "guestprobe-fleetd"
