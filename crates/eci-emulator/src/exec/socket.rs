//! The WebSocket of a command.

use std::sync::Arc;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::{
    Output,
    session::{self, Input},
};
use crate::{
    emulator::Emulator,
    http::{Delivery, HttpRequest, HttpResponse},
};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const END: u8 = 3;
const RESIZE: u8 = 4;
/// Closes the channel that follows, as in version 5 of the protocol.
const CLOSE: u8 = 255;

/// Serves the connection of a session.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
    emulator: &Arc<Emulator>,
    request: &HttpRequest,
    mut stream: BufReader<S>,
) {
    let token = request.path.trim_start_matches("/exec/");
    let command = emulator.sessions.take(token, emulator.clock.now());
    let (Some(key), Some(command)) = (request.header("sec-websocket-key"), command) else {
        let refusal =
            json!({"Code": "InvalidSession", "Message": "The session does not exist or has expired."});
        let _ = HttpResponse::json(403, &refusal).write(&mut stream, Delivery::Whole, false).await;
        return;
    };
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    if stream.write_all(head.as_bytes()).await.is_err() || stream.flush().await.is_err() {
        return;
    }
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    let mut running = match session::start(emulator, &command) {
        Ok(running) => running,
        Err(error) => {
            let _ = socket.send(message(END, error.to_string().as_bytes())).await;
            let _ = socket.close(None).await;
            return;
        }
    };
    let mut input = running.input().filter(|_| command.stdin || command.tty);
    running.close_input();
    // Input and output do not wait for each other: a command may read only after its output was read.
    let (mut sink, mut stream) = socket.split();
    let reader = async {
        while let Some(Ok(received)) = stream.next().await {
            let forwarded = match received {
                Message::Binary(bytes) if bytes.as_ref() == [CLOSE, STDIN] => {
                    input = None;
                    continue;
                }
                Message::Binary(bytes) => parse(&bytes),
                Message::Text(text) => Some(Input::Data(text.as_bytes().to_vec())),
                Message::Close(_) => return,
                _ => None,
            };
            if let (Some(forwarded), Some(to)) = (forwarded, &input)
                && to.send(forwarded).await.is_err()
            {
                input = None;
            }
        }
    };
    let writer = async {
        loop {
            let (sent, is_end) = match running.next().await {
                Some(Output::Out(bytes)) => (message(STDOUT, &bytes), false),
                Some(Output::Err(bytes)) => (message(STDERR, &bytes), false),
                Some(Output::End(code)) => (message(END, status(code).to_string().as_bytes()), true),
                None => (message(END, b"the command was lost"), true),
            };
            if sink.send(sent).await.is_err() || is_end {
                let _ = sink.close().await;
                return;
            }
        }
    };
    tokio::select! {
        () = reader => {}
        () = writer => {}
    }
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(channel);
    message.extend(bytes);
    Message::Binary(message.into())
}

fn parse(bytes: &[u8]) -> Option<Input> {
    match bytes.split_first()? {
        (&STDIN, data) => Some(Input::Data(data.to_vec())),
        (&RESIZE, size) => {
            let size: Value = serde_json::from_slice(size).ok()?;
            let number = |name: &str| size[name].as_u64().and_then(|number| u16::try_from(number).ok());
            Some(Input::Size { columns: number("Width")?, rows: number("Height")? })
        }
        _ => None,
    }
}

/// How Kubernetes says that a command has ended.
fn status(code: i32) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}
