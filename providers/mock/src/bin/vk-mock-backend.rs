//! A process that has the mock's pods, so that they outlive the one that asked for them.

use std::{env, error::Error, io::Write, path::PathBuf, process::ExitCode};

use tokio::net::UnixListener;
use vk_provider_mock::{PodHost, serve};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vk-mock-backend: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [option, socket] = words.as_slice() else { return Err("usage: --socket PATH".into()) };
    if option != "--socket" {
        return Err(format!("unknown option {option}; usage: --socket PATH").into());
    }
    let socket = PathBuf::from(socket);
    // Left behind by one that was killed.
    if socket.exists() {
        std::fs::remove_file(&socket)?;
    }
    let listener = UnixListener::bind(&socket)?;
    writeln!(std::io::stdout(), "ready on {}", socket.display())?;
    Ok(serve(listener, PodHost::default()).await?)
}
