// The other side of vk-spdy's tests: moby/spdystream, which is what every API server, kubectl and container runtime speaks SPDY with.
//
//	spdy-peer serve              listens on a free port, prints the address, and does for each stream what its header "mode" says
//	spdy-peer call ADDRESS       asks a server for the same things, and fails if it gets anything else
//	spdy-peer record FOLDER      lets the two talk to each other and writes down what each has sent
package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/moby/spdystream"
)

func main() {
	log.SetFlags(0)
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		err = serve()
	case len(os.Args) == 3 && os.Args[1] == "call":
		err = call(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "record":
		err = record(os.Args[2])
	default:
		err = errors.New("usage: spdy-peer serve | call ADDRESS | record FOLDER")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// pattern is the same on both sides of every test.
func pattern(length int) []byte {
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(uint32(i) * 2654435761 >> 24)
	}
	return data
}

func digest(data []byte) []byte {
	sum := fnv.New64a()
	_, _ = sum.Write(data)
	return fmt.Appendf(nil, "%016x", sum.Sum64())
}

func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	// Whoever started us holds the other end: we end with them.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		connection, err := spdystream.NewConnection(conn, true)
		if err != nil {
			return err
		}
		go connection.Serve(handle)
	}
}

func handle(stream *spdystream.Stream) {
	mode := stream.Headers().Get("mode")
	if mode == "refuse" {
		_ = stream.Refuse()
		return
	}
	if err := stream.SendReply(http.Header{"Mode": {mode}, "Several": {"a", "b"}}, false); err != nil {
		return
	}
	go func() {
		switch mode {
		case "echo":
			_, _ = io.Copy(stream, stream)
		case "digest":
			sum := fnv.New64a()
			_, _ = io.Copy(sum, stream)
			_, _ = fmt.Fprintf(stream, "%016x", sum.Sum64())
		case "source":
			length, _ := strconv.Atoi(stream.Headers().Get("length"))
			_, _ = io.Copy(stream, bytes.NewReader(pattern(length)))
		case "reset":
			_, _ = stream.Write([]byte("last words"))
			_ = stream.Reset()
			return
		}
		_ = stream.Close()
	}()
}

func call(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	if err := talk(conn, 8, 3_000_000); err != nil {
		return err
	}
	fmt.Println("ok")
	return nil
}

// talk asks for everything once, with so many streams at a time and so many bytes on each.
func talk(conn net.Conn, parallel, length int) error {
	connection, err := spdystream.NewConnection(conn, false)
	if err != nil {
		return err
	}
	go connection.Serve(spdystream.NoOpStreamHandler)

	if err := stepwise(connection, length); err != nil {
		return err
	}
	var group sync.WaitGroup
	failures := make(chan error, parallel)
	for i := range parallel {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := exchange(connection, []string{"echo", "digest", "source"}[i%3], length); err != nil {
				failures <- fmt.Errorf("stream %d: %w", i, err)
			}
		}()
	}
	group.Wait()
	close(failures)
	for err := range failures {
		return err
	}
	if _, err := connection.Ping(); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return connection.CloseWait()
}

func stepwise(connection *spdystream.Connection, length int) error {
	if _, err := connection.Ping(); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	refused, err := open(connection, "refuse", 0)
	if err == nil {
		return fmt.Errorf("%v was not refused", refused)
	}
	stream, err := open(connection, "reset", 0)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	heard, err := io.ReadAll(stream)
	if err != nil || string(heard) != "last words" {
		return fmt.Errorf("reset: heard %q, %w", heard, err)
	}
	for _, mode := range []string{"echo", "digest", "source"} {
		if err := exchange(connection, mode, length); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
	}
	return nil
}

func open(connection *spdystream.Connection, mode string, length int) (*spdystream.Stream, error) {
	headers := http.Header{"Mode": {mode}, "Length": {strconv.Itoa(length)}}
	stream, err := connection.CreateStream(headers, nil, false)
	if err != nil {
		return nil, err
	}
	return stream, stream.WaitTimeout(10 * time.Second)
}

func exchange(connection *spdystream.Connection, mode string, length int) error {
	stream, err := open(connection, mode, length)
	if err != nil {
		return err
	}
	data := pattern(length)
	want := data
	written := make(chan error, 1)
	go func() {
		if mode != "source" {
			for rest := data; len(rest) > 0; {
				piece := rest[:min(len(rest), 32<<10)]
				if _, err := stream.Write(piece); err != nil {
					written <- err
					return
				}
				rest = rest[len(piece):]
			}
		}
		written <- stream.Close()
	}()
	got, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	if err := <-written; err != nil {
		return err
	}
	if mode == "digest" {
		want = digest(data)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s: got %d bytes that are not the %d expected", mode, len(got), len(want))
	}
	return nil
}

// tape writes down what is sent over a connection.
type tape struct {
	net.Conn
	file *os.File
}

func (t *tape) Write(data []byte) (int, error) {
	n, err := t.Conn.Write(data)
	_, _ = t.file.Write(data[:n])
	return n, err
}

func record(folder string) error {
	near, far := net.Pipe()
	tapes := map[string]net.Conn{"client.bin": near, "server.bin": far}
	for name, conn := range tapes {
		file, err := os.Create(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		defer file.Close()
		tapes[name] = &tape{conn, file}
	}
	server, err := spdystream.NewConnection(tapes["server.bin"], true)
	if err != nil {
		return err
	}
	go server.Serve(handle)
	return talk(tapes["client.bin"], 3, 1000)
}
