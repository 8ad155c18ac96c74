// Package dev is gpdev: the tools of those who work on guestprobe.
package dev
