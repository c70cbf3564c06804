// The other side of vk-streaming's tests: the client that kubectl is made of, and the server that container runtimes are made of.
//
//	streaming-peer exec URL spdy|websocket [tty]    standard streams and exit code are those of the remote process; with tty, sizes come first
//	streaming-peer forward URL spdy|websocket PORT  prints a local address that leads to the port, until its standard input ends
//	streaming-peer serve                            a runtime's streaming server: for each line of its standard input, a JSON
//	                                                object, it prints an address
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	serverexec "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	utilexec "k8s.io/utils/exec"
)

func main() {
	log.SetFlags(0)
	args := os.Args[1:]
	var err error
	switch {
	case len(args) >= 3 && args[0] == "exec":
		err = run(args[1], args[2], len(args) > 3)
	case len(args) == 4 && args[0] == "forward":
		err = forward(args[1], args[2], args[3])
	case len(args) == 1 && args[0] == "serve":
		err = serve()
	default:
		err = errors.New("usage: streaming-peer exec URL CARRIER [tty] | forward URL CARRIER PORT | serve")
	}
	var code exec.CodeExitError
	if errors.As(err, &code) {
		os.Exit(code.Code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(250)
	}
}

// sizes gives two sizes, and then no more.
type sizes struct{ left []remotecommand.TerminalSize }

func (s *sizes) Next() *remotecommand.TerminalSize {
	if len(s.left) == 0 {
		return nil
	}
	next := s.left[0]
	s.left = s.left[1:]
	return &next
}

func run(address, carrier string, tty bool) error {
	location, err := url.Parse(address)
	if err != nil {
		return err
	}
	config := &rest.Config{Host: location.Host}
	var executor remotecommand.Executor
	if carrier == "spdy" {
		executor, err = remotecommand.NewSPDYExecutor(config, "POST", location)
	} else {
		executor, err = remotecommand.NewWebSocketExecutor(config, "GET", address)
	}
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if tty {
		options.Stderr = nil
		options.Tty = true
		options.TerminalSizeQueue = &sizes{left: []remotecommand.TerminalSize{{Width: 80, Height: 24}, {Width: 132, Height: 50}}}
	}
	return executor.StreamWithContext(context.Background(), options)
}

func forward(address, carrier, port string) error {
	location, err := url.Parse(address)
	if err != nil {
		return err
	}
	config := &rest.Config{Host: location.Host}
	var dialer httpstream.Dialer
	if carrier == "spdy" {
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return err
		}
		dialer = spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, "POST", location)
	} else if dialer, err = portforward.NewSPDYOverWebsocketDialerForStreaming(location, config); err != nil {
		return err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:" + port}, stop, ready, io.Discard, os.Stderr)
	if err != nil {
		return err
	}
	go func() {
		<-ready
		ports, _ := forwarder.GetPorts()
		fmt.Printf("127.0.0.1:%d\n", ports[0].Local)
	}()
	return forwarder.ForwardPorts()
}

// wanted is what a line asks for.
type wanted struct {
	Command                    []string
	Stdin, Stdout, Stderr, Tty bool
	Forward                    bool
}

func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	server, err := streaming.NewServer(config, runtime{})
	if err != nil {
		return err
	}
	go func() { log.Fatal(http.Serve(listener, server)) }()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var want wanted
		if err := json.Unmarshal(lines.Bytes(), &want); err != nil {
			return err
		}
		var address string
		if want.Forward {
			response, err := server.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "sandbox"})
			if err != nil {
				return err
			}
			address = response.Url
		} else {
			response, err := server.GetExec(&runtimeapi.ExecRequest{
				ContainerId: "container", Cmd: want.Command,
				Stdin: want.Stdin, Stdout: want.Stdout, Stderr: want.Stderr, Tty: want.Tty,
			})
			if err != nil {
				return err
			}
			address = response.Url
		}
		fmt.Println(address)
	}
	return lines.Err()
}

type runtime struct{}

// Exec knows a few commands: "cat" gives back its input, "exit" ends with a code, "sizes" writes two sizes, "fail" cannot be run.
func (runtime) Exec(_ context.Context, _ string, command []string, in io.Reader, out, errs io.WriteCloser, _ bool, resize <-chan serverexec.TerminalSize) error {
	switch command[0] {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "exit":
		fmt.Fprint(out, "out")
		if errs != nil {
			fmt.Fprint(errs, "err")
		}
		code, err := strconv.Atoi(command[1])
		if err != nil || code == 0 {
			return err
		}
		return utilexec.CodeExitError{Err: fmt.Errorf("exit code %d", code), Code: code}
	case "sizes":
		for range 2 {
			size := <-resize
			fmt.Fprintf(out, "%dx%d\n", size.Width, size.Height)
		}
		return nil
	default:
		return fmt.Errorf("no such command: %s", strings.Join(command, " "))
	}
}

func (r runtime) Attach(ctx context.Context, container string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan serverexec.TerminalSize) error {
	return r.Exec(ctx, container, []string{"cat"}, in, out, errs, tty, resize)
}

// PortForward gives back what it gets, but nothing listens on port 1.
func (runtime) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	if port == 1 {
		return errors.New("connection refused")
	}
	_, err := io.Copy(stream, stream)
	return err
}
