package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"kong-quota/plugin"
)

// install puts the executable, its dump and the folder for its socket where Kong
// finds them: an image that holds nothing else has no shell to do it.
func install(folder, prefix string) error {
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	for _, path := range []string{folder, prefix} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("install: %w", err)
		}
	}
	// Kong makes the socket there, as another user perhaps: in its own charts pods say
	// none, and each container has its own.
	if err := os.Chmod(prefix, os.ModeSticky|0o777); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if err := copyFile(own, filepath.Join(folder, plugin.Name)); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	text, err := plugin.Dump(plugin.Name, prefix)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	kept := filepath.Join(folder, "dump.json")
	err = os.WriteFile(kept, append(text, '\n'), 0o644)
	if err == nil {
		err = os.Chmod(kept, 0o644) // whatever the umask
	}
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

// copyFile replaces to whole or not at all: a server may be running from it.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name())
		}
	}()
	if _, err = io.Copy(out, in); err == nil {
		err = out.Chmod(0o755)
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(out.Name(), to)
}
