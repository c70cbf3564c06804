//! The server, and what tests do with it.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc};

use jiff::Timestamp;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader},
    net::TcpListener,
    task::JoinSet,
};

use crate::{
    account::AccessKey,
    calls::{self, Call},
    cloud::{BillingRecord, Settings},
    control::{self, GroupSummary},
    emulator::{CallCount, Emulator, Options, SentRequest},
    error::ApiError,
    exec,
    fault::Rule,
    http::{Delivery, HttpRequest},
    rate::Limit,
    schema,
};

/// An emulator that runs. It ends with everything that runs in its containers when it is dropped.
pub struct EciEmulator {
    emulator: Arc<Emulator>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

// === impl EciEmulator ===

impl EciEmulator {
    /// Starts an emulator on loopback.
    pub async fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", options.port)).await?;
        let address = listener.local_addr()?;
        let emulator = Emulator::new(&options, address.to_string())?;
        let mut tasks = JoinSet::new();
        if emulator.processes.is_some() {
            tasks.spawn(Arc::clone(&emulator).drive());
        }
        let served = Arc::clone(&emulator);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        if let Ok((stream, _)) = accepted {
                            let _ = stream.set_nodelay(true);
                            connections.spawn(serve(Arc::clone(&served), stream));
                        }
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { emulator, address, _tasks: tasks })
    }

    /// Serves a connection that is not over TCP: for tests on a paused clock, which cannot wait for sockets.
    pub fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        serve(Arc::clone(&self.emulator), stream)
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds or replaces an access key.
    pub fn set_key(&self, id: &str, key: AccessKey) {
        self.emulator.account.lock().keys.insert(id.to_owned(), key);
    }

    /// Takes the permission for an action, or gives it back.
    pub fn deny(&self, action: &str, is_denied: bool) {
        let denied = &mut self.emulator.account.lock().denied;
        if is_denied {
            denied.insert(action.to_owned());
        } else {
            denied.remove(action);
        }
    }

    /// Whether the account owes money.
    pub fn set_overdrawn(&self, is_overdrawn: bool) {
        self.emulator.account.lock().is_overdrawn = is_overdrawn;
    }

    /// Changes how the cloud behaves from now on.
    pub fn change_settings(&self, change: impl FnOnce(&mut Settings)) {
        self.emulator.with_cloud(|cloud| change(&mut cloud.settings));
    }

    /// Another rate limit for an action.
    pub fn set_limit(&self, action: &'static str, limit: Limit) {
        self.emulator.set_limit(action, limit);
    }

    /// From now on, calls that match have a fault.
    pub fn add_fault(&self, rule: Rule) {
        self.emulator.add_fault(rule);
    }

    /// From now on, no call has a fault.
    pub fn clear_faults(&self) {
        self.emulator.faults.lock().clear();
    }

    /// Calls by action.
    pub fn calls(&self) -> BTreeMap<String, CallCount> {
        self.emulator.counts.lock().clone()
    }

    /// Forgets how many calls there were.
    pub fn reset_calls(&self) {
        self.emulator.counts.lock().clear();
    }

    /// What each group has cost, those that are gone included.
    pub fn bills(&self) -> Vec<BillingRecord> {
        self.emulator.bills()
    }

    /// The groups that exist.
    pub fn groups(&self) -> Vec<GroupSummary> {
        control::groups(&self.emulator)
    }

    /// Takes a spot group back.
    pub fn reclaim(&self, id: &str) -> bool {
        control::act(&self.emulator, id, control::Action::Reclaim)
    }

    /// Makes a group vanish, as if somebody else had deleted it.
    pub fn vanish(&self, id: &str) -> bool {
        control::act(&self.emulator, id, control::Action::Vanish)
    }

    /// Adds an event to a group.
    pub fn add_event(&self, id: &str, reason: &str, message: &str) -> bool {
        let action = control::Action::Event { reason: reason.to_owned(), message: message.to_owned() };
        control::act(&self.emulator, id, action)
    }

    /// Ends a container of a simulated group with this code.
    pub fn exit(&self, id: &str, container: &str, code: i32) -> bool {
        let action = control::Action::Exit { container: container.to_owned(), code };
        control::act(&self.emulator, id, action)
    }

    /// Appends a line to the log of a container.
    pub fn log(&self, id: &str, container: &str, line: &str) -> bool {
        let action = control::Action::Log { container: container.to_owned(), line: line.to_owned() };
        control::act(&self.emulator, id, action)
    }

    /// Creates a group as somebody else in the account does, with these parameters. Returns its id.
    pub fn create(&self, parameters: &[(String, String)]) -> Result<String, ApiError> {
        let action = "CreateContainerGroup";
        let request = schema::read(action, parameters.iter())?;
        let call = Call { action, request: &request, may_list: true };
        let answer = self.emulator.with_cloud(|cloud| calls::carry_out(cloud, &call))?;
        Ok(answer["ContainerGroupId"].as_str().unwrap_or_default().to_owned())
    }

    /// The request that created a group, as a tree.
    pub fn request(&self, id: &str) -> Option<Value> {
        self.emulator.with_cloud(|cloud| cloud.find(id).ok().map(|(_, group)| group.spec.clone()))
    }

    /// The newest request of this action, whatever became of it.
    pub fn last_request(&self, action: &str) -> Option<SentRequest> {
        self.emulator.newest.lock().get(action).cloned()
    }

    /// All calls: a JSON object for each, with what may be secret masked.
    pub fn journal(&self) -> Vec<Value> {
        self.emulator.journal.entries()
    }

    /// The time of the emulator.
    pub fn now(&self) -> Timestamp {
        self.emulator.clock.now()
    }
}

async fn serve(emulator: Arc<Emulator>, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    let mut stream = BufReader::new(stream);
    // The client may close the connection at any time.
    while let Ok(Some(request)) = HttpRequest::read(&mut stream).await {
        if request.path.starts_with("/exec/") {
            exec::serve(&emulator, &request, stream).await;
            return;
        }
        let (response, delivery) = if request.path.starts_with("/control/") {
            (control::answer(&emulator, &request), Delivery::Whole)
        } else {
            emulator.answer(&request).await
        };
        let keep = request.header("connection").is_none_or(|value| !value.eq_ignore_ascii_case("close"));
        if !response.write(&mut stream, delivery, keep).await.unwrap_or(false) {
            return;
        }
    }
}
