package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	danube "github.com/danube-messaging/danube-go"
	"github.com/danube-messaging/danube-go/proto"
)

var (
	url   string
	stamp = time.Now().UnixMilli()
	stdin = bufio.NewReader(os.Stdin)
)

// The clients do not tell when their stream has reached the broker.
const attached = 400 * time.Millisecond

type message = *proto.StreamMessage

func topic(name string) string { return fmt.Sprintf("/default/go-%s-%d", name, stamp) }

func note(format string, a ...any) { fmt.Printf("  note "+format+"\n", a...) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(ok bool, format string, a ...any) {
	if !ok {
		panic(fmt.Errorf(format, a...))
	}
}

func within(seconds int) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds)*time.Second)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func newClient() *danube.DanubeClient {
	client, err := danube.NewClient().ServiceURL(url).Build()
	must(err)
	return client
}

func producer(client *danube.DanubeClient, topic string, options ...func(*danube.ProducerBuilder)) *danube.Producer {
	builder := client.NewProducer().WithTopic(topic).WithName("p").
		WithDispatchStrategy(danube.NewReliableDispatchStrategy())
	for _, option := range options {
		option(builder)
	}
	made, err := builder.Build()
	must(err)
	must(made.Create(within(30)))
	return made
}

// As patient as an application that expects its broker to be restarted.
func patient(builder *danube.ProducerBuilder) {
	builder.WithOptions(danube.ProducerOptions{MaxRetries: 300, BaseBackoffMs: 20, MaxBackoffMs: 200})
}

func consumer(
	client *danube.DanubeClient, topic, name string, kind danube.SubType, filters ...string,
) (*danube.Consumer, chan message) {
	builder := client.NewConsumer().WithTopic(topic).WithConsumerName(name).WithSubscription("s").
		WithSubscriptionType(kind).
		WithOptions(danube.ConsumerOptions{MaxRetries: 300, BaseBackoffMs: 20, MaxBackoffMs: 200})
	if len(filters) > 0 {
		builder = builder.WithKeyFilters(filters)
	}
	made, err := builder.Build()
	must(err)
	must(made.Subscribe(within(30)))
	messages, err := made.Receive(context.Background())
	must(err)
	return made, messages
}

func next(messages chan message, patience time.Duration) message {
	select {
	case got, ok := <-messages:
		check(ok, "the receive loop has ended")
		return got
	case <-time.After(patience):
		panic(fmt.Errorf("no message within %v", patience))
	}
}

func none(messages chan message, patience time.Duration) {
	select {
	case got, ok := <-messages:
		panic(fmt.Errorf("unexpected message (open=%v) %v", ok, got))
	case <-time.After(patience):
	}
}

func send(p *danube.Producer, data []byte, attributes map[string]string) {
	_, err := p.Send(within(30), data, attributes)
	must(err)
}

func sendKey(p *danube.Producer, data, key string) {
	_, err := p.SendWithKey(within(30), []byte(data), nil, key)
	must(err)
}

func ack(k *danube.Consumer, m message) {
	_, err := k.Ack(within(30), m)
	must(err)
}

// Ask the runner for a restart of the broker, while the scenario goes on; the channel tells that it is back.
func askForRestart(how string) chan struct{} {
	back := make(chan struct{})
	fmt.Println("restart now " + how)
	go func() {
		_, err := stdin.ReadString('\n')
		if err == nil {
			close(back)
		}
	}()
	return back
}
