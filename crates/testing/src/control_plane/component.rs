//! A component: how it is started, how one sees that it is ready, and its process while it runs.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::certs::Certificate;
use super::error::{Error, Result};
use super::kubeconfig;
use super::process::{Launch, Process};

/// How often to ask a component whether it is ready.
pub(super) const READY_POLL: Duration = Duration::from_millis(50);
/// One question must not take long: a component that hangs is not ready.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often to try again, and after which time, when a component must have a port that is taken.
const PORT_RETRIES: u32 = 5;
const PORT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Where a component says that it is ready.
#[derive(Debug, Clone)]
pub(super) enum Probe {
    /// Over plain HTTP on loopback.
    Plain { port: u16, path: &'static str },
    /// Over HTTPS, as this identity.
    Secure { url: String, path: &'static str, ca_pem: String, identity: Certificate },
}

/// One component. The lock is not tied to a runtime, as different tests on different ones share it.
#[derive(Debug)]
pub(super) struct Component {
    launch: Launch,
    probe: Probe,
    process: Mutex<Option<Process>>,
}

// === impl Component ===

impl Component {
    pub(super) fn new(launch: Launch, probe: Probe) -> Self {
        Self { launch, probe, process: Mutex::new(None) }
    }

    /// Starts the component and waits until it is ready.
    pub(super) async fn start(&self, deadline: Duration) -> Result<()> {
        let mut slot = self.process.lock().await;
        if let Some(process) = slot.as_mut()
            && process.check_running().is_ok()
        {
            return Err(Error::AlreadyRunning(self.launch.component));
        }
        *slot = None;
        let mut process = self.launch.start()?;
        self.wait_ready(&mut process, deadline).await?;
        *slot = Some(process);
        Ok(())
    }

    /// As [`start`](Self::start), for a component that must come back on the port it had.
    pub(super) async fn start_again(&self, deadline: Duration) -> Result<()> {
        for _ in 0..PORT_RETRIES {
            match self.start(deadline).await {
                Err(error) if error.port_conflict().is_some() => sleep(PORT_RETRY_INTERVAL).await,
                result => return result,
            }
        }
        self.start(deadline).await
    }

    /// Ends the component: asks, waits for `grace`, then kills. Returns when it is gone.
    pub(super) async fn stop(&self, grace: Duration) -> Result<()> {
        self.take().await?.stop(grace).await;
        Ok(())
    }

    /// Kills the component. Returns when it is gone.
    pub(super) async fn kill(&self) -> Result<()> {
        drop(self.take().await?);
        Ok(())
    }

    pub(super) async fn signal(&self, signal: Signal) -> Result<()> {
        let slot = self.process.lock().await;
        slot.as_ref().ok_or(Error::NotRunning(self.launch.component))?.signal(signal);
        Ok(())
    }

    /// Stops the component where it is, and returns when it stands still: a signal takes effect some time after it was
    /// sent, and later on some threads than on others.
    pub(super) async fn pause(&self) -> Result<()> {
        let slot = self.process.lock().await;
        let process = slot.as_ref().ok_or(Error::NotRunning(self.launch.component))?;
        process.signal(Signal::SIGSTOP);
        let end = Instant::now() + Duration::from_secs(5);
        while !stands_still(process.pid()) {
            if Instant::now() > end {
                return Err(Error::NotReady {
                    component: self.launch.component,
                    waited: Duration::from_secs(5),
                    seen: "some of its threads still run".to_owned(),
                    log: self.launch.log.clone(),
                    tail: String::new(),
                });
            }
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Its name and, while it runs, its process id.
    pub(super) async fn pid(&self) -> Option<(&'static str, u32)> {
        self.process.lock().await.as_ref().map(|process| (self.launch.component, process.pid()))
    }

    /// Kills the component, from where nothing can be awaited.
    pub(super) fn kill_now(&mut self) {
        drop(self.process.get_mut().take());
    }

    async fn take(&self) -> Result<Process> {
        self.process.lock().await.take().ok_or(Error::NotRunning(self.launch.component))
    }

    async fn wait_ready(&self, process: &mut Process, deadline: Duration) -> Result<()> {
        let begin = Instant::now();
        let probe = self.probe.prepare()?;
        loop {
            process.check_running()?;
            let seen = match timeout(PROBE_TIMEOUT, probe.ask()).await {
                Ok(Ok(())) => {
                    // The answer could come from another process that has our port.
                    process.check_running()?;
                    let component = self.launch.component;
                    tracing::debug!(component, elapsed = ?begin.elapsed(), "component is ready");
                    return Ok(());
                }
                Ok(Err(seen)) => seen,
                Err(_) => format!("no answer within {PROBE_TIMEOUT:?}"),
            };
            if begin.elapsed() >= deadline {
                return Err(process.not_ready(deadline, seen));
            }
            sleep(READY_POLL).await;
        }
    }
}

/// A probe with its client, which belongs to the runtime that waits.
enum Prepared {
    Plain { port: u16, path: &'static str },
    Secure { client: kube::Client, path: &'static str },
}

impl Probe {
    fn prepare(&self) -> Result<Prepared> {
        Ok(match self {
            Self::Plain { port, path } => Prepared::Plain { port: *port, path },
            Self::Secure { url, path, ca_pem, identity } => {
                Prepared::Secure { client: kubeconfig::client(url, ca_pem, identity)?, path }
            }
        })
    }
}

impl Prepared {
    async fn ask(&self) -> Result<(), String> {
        match self {
            Self::Plain { port, path } => match get_plain(*port, path).await {
                Ok(head) if head.split(' ').nth(1) == Some("200") => Ok(()),
                Ok(head) => Err(head),
                Err(error) => Err(error.to_string()),
            },
            Self::Secure { client, path } => {
                let request =
                    http::Request::get(*path).body(Vec::new()).map_err(|error| error.to_string())?;
                client.request_text(request).await.map(drop).map_err(|error| error.to_string())
            }
        }
    }
}

/// The first line of the answer to a GET; too little to bring in an HTTP client for.
async fn get_plain(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// Whether every thread of a process is stopped.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        // A thread that has just ended does not run either.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { return true };
        stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('T'))
    })
}
