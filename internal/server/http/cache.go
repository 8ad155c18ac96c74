package http

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/guestprobe/guestprobe/internal/server/saved"
)

// noCache is the value of --cache that disables the cache.
const noCache = "none"

// cacheFolder is the subfolder for scans. The daemon leaves the rest of the folder alone.
const cacheFolder = "text"

// openCache opens the folder of --cache. If the default folder is not usable, the daemon runs without a cache.
func (o *options) openCache(log *slog.Logger) error {
	dir := o.cache
	switch {
	case dir == noCache, dir == "" && o.user.asked != "":
		return nil
	case dir == "":
		cache, err := os.UserCacheDir()
		if err != nil {
			log.Debug("no cache of scans of kernels' text", "err", err)
			return nil
		}
		dir = filepath.Join(cache, "guestprobe")
	}
	c, err := saved.OpenCache(filepath.Join(dir, cacheFolder), log, o.stateUsers()...)
	if err != nil && o.cache == "" {
		log.Debug("no cache of scans of kernels' text", "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("--cache: %w", err)
	}
	o.scans = c
	return nil
}
