// Package dev is gpdev: tools for developers of guestprobe.
package dev
