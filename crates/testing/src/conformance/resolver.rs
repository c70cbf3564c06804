//! A resolver for the pods of the cases, without an API server.

mod files;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Container, EnvVar, Pod, Secret, Service},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use vk_provider::{
    Error, PodBundle, Resolver, Result,
    error::Kind,
    resolve::{
        Claim, CommandLine, ContainerInputs, Deferred, Facts, FileSet, NodeFacts, Origin, PullCredentials,
        Reference, ReferenceKind, Token, TokenLifetime, TokenRequest, Variable,
    },
};

use super::{
    context::{NODE, NODE_IP},
    pod_builder::{LOGIN, PULL_SECRET, SETTINGS},
};

/// The user of the pull secret.
pub(super) const PULL_USER: &str = "conformance";
/// When the tokens expire.
const EXPIRES: Timestamp = Timestamp::constant(4_102_444_800, 0);

/// A resolver with fixed objects, whose tokens can be renewed.
pub(crate) struct FixedResolver {
    pod: Arc<Pod>,
    /// Whether the ConfigMap that pods refer to exists.
    settings: bool,
    /// Counts the tokens.
    tokens: watch::Sender<u32>,
    requests: Mutex<Requests>,
}

/// What the provider asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    /// The lifetime of tokens, for each volume.
    pub(crate) lifetimes: BTreeMap<String, TokenLifetime>,
    /// The images whose credentials were asked for.
    pub(crate) images: Vec<String>,
}

/// A pod with its resolver, which needs no API server. `settings`: whether the ConfigMap exists that pods of the suite refer to.
pub fn bundle(pod: &Arc<Pod>, settings: bool) -> PodBundle {
    let resolver = Arc::new(FixedResolver { settings, ..FixedResolver::new(pod) });
    PodBundle { pod: Arc::clone(pod), resolver }
}

// === impl FixedResolver ===

impl FixedResolver {
    pub(crate) fn new(pod: &Arc<Pod>) -> Self {
        let (pod, tokens) = (Arc::clone(pod), watch::Sender::new(1));
        Self { pod, settings: true, tokens, requests: Mutex::default() }
    }

    /// Replaces the tokens.
    pub(crate) fn renew_tokens(&self) {
        self.tokens.send_modify(|count| *count += 1);
    }

    /// The current token.
    pub(crate) fn current_token(&self) -> String {
        token(*self.tokens.borrow())
    }

    /// What the provider asked for until now.
    pub(crate) fn requests(&self) -> Requests {
        self.requests.lock().clone()
    }

    fn settings(&self, map: &str) -> Result<BTreeMap<String, String>> {
        let (name, key, value) = SETTINGS;
        let mut reference = Reference::new(ReferenceKind::ConfigMap, "default", map);
        if map == name && self.settings {
            return Ok([(key.to_owned(), value.to_owned())].into());
        }
        if map == name {
            reference = reference.key(key);
        }
        Err(missing(reference))
    }

    /// A variable; `None` for sources that the suite does not use.
    fn variable(&self, variable: &EnvVar, known: &[Variable], facts: &Facts) -> Result<Option<Variable>> {
        let name = &variable.name;
        let Some(source) = &variable.value_from else {
            return Ok(Some(expanded(name, variable.value.as_deref().unwrap_or_default(), known)));
        };
        if let Some(selector) = &source.config_map_key_ref {
            let value = self.settings(&selector.name)?.remove(&selector.key);
            return Ok(value.map(|value| Variable::new(name, value, Origin::ConfigMap)));
        }
        if let Some(selector) = &source.secret_key_ref {
            let value = login(&selector.name)?.remove(&selector.key);
            return Ok(value.map(|value| Variable::new(name, value, Origin::Secret)));
        }
        let Some(field) = &source.field_ref else { return Ok(None) };
        let address = facts.pod_ips.first().map(ToString::to_string);
        let field = field.field_path.clone();
        let deferred = address.is_none().then_some(Deferred { field, whole: true });
        Ok(Some(Variable { deferred, ..Variable::new(name, address.unwrap_or_default(), Origin::Field) }))
    }
}

fn token(number: u32) -> String {
    format!("conformance-token-{number}")
}

fn missing(reference: Reference) -> Error {
    let message = format!("resolve {reference}: not found");
    Error::new(Kind::Unresolved(reference), message)
}

/// The data of the Secret that pods refer to.
fn login(secret: &str) -> Result<BTreeMap<String, String>> {
    let (name, key, value) = LOGIN;
    if secret == name {
        return Ok([(key.to_owned(), value.to_owned())].into());
    }
    Err(missing(Reference::new(ReferenceKind::Secret, "default", secret)))
}

/// A literal value, in which references to known variables are replaced.
fn expanded(name: &str, value: &str, known: &[Variable]) -> Variable {
    let mut expanded = Variable::new(name, value, Origin::Literal);
    for variable in known {
        let reference = format!("$({})", variable.name);
        if expanded.value.contains(&reference) {
            expanded.value = expanded.value.replace(&reference, &variable.value);
            expanded.origin = expanded.origin.max(variable.origin);
            let deferred = variable.deferred.clone();
            let deferred = deferred.map(|deferred| Deferred { whole: value == reference, ..deferred });
            expanded.deferred = expanded.deferred.or(deferred);
        }
    }
    expanded
}

fn line(words: Option<&Vec<String>>) -> Option<CommandLine> {
    words.map(CommandLine::literal)
}

#[async_trait]
impl Resolver for FixedResolver {
    async fn container(&self, name: &str, facts: &Facts) -> Result<ContainerInputs> {
        let spec = self.pod.spec.as_ref();
        let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let all = init.chain(spec.into_iter().flat_map(|spec| &spec.containers));
        let found: Option<&Container> = all.into_iter().find(|container| container.name == name);
        let mut ephemeral = spec.into_iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
        // The suite's ephemeral containers have a command and no variables.
        if let Some(joins) = ephemeral.find(|container| container.name == name) {
            let (command, args) = (line(joins.command.as_ref()), line(joins.args.as_ref()));
            return Ok(ContainerInputs { env: Vec::new(), command, args });
        }
        let found =
            found.ok_or_else(|| Error::not_found(format!("resolve container {name}: no such one")))?;
        let mut env = Vec::new();
        for variable in found.env.iter().flatten() {
            let variable = self.variable(variable, &env, facts)?;
            env.extend(variable);
        }
        let (command, args) = (line(found.command.as_ref()), line(found.args.as_ref()));
        Ok(ContainerInputs { env, command, args })
    }

    fn volume(&self, name: &str, tokens: TokenLifetime) -> BoxStream<'static, Result<FileSet>> {
        self.requests.lock().lifetimes.insert(name.to_owned(), tokens);
        let changes = self.tokens.subscribe();
        let set = match files::of_volume(self, name) {
            Ok(set) if set.expires.is_some() => set,
            // One set, and no changes.
            set => return stream::iter([set]).chain(stream::pending()).boxed(),
        };
        let renewed = stream::unfold((changes, set.clone()), |(mut tokens, mut set)| async move {
            tokens.changed().await.ok()?;
            files::replace_tokens(&mut set, &token(*tokens.borrow_and_update()));
            Some((Ok(set.clone()), (tokens, set)))
        });
        stream::iter([Ok(set)]).chain(renewed).chain(stream::pending()).boxed()
    }

    async fn config_map(&self, name: &str) -> Result<Arc<ConfigMap>> {
        let data = Some(self.settings(name)?);
        Ok(Arc::new(ConfigMap { metadata: metadata(name), data, ..ConfigMap::default() }))
    }

    async fn secret(&self, name: &str) -> Result<Arc<Secret>> {
        let data = login(name)?.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes())));
        Ok(Arc::new(Secret { metadata: metadata(name), data: Some(data.collect()), ..Secret::default() }))
    }

    async fn services(&self) -> Result<Vec<Arc<Service>>> {
        Ok(Vec::new())
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token> {
        Ok(Token { token: self.current_token().into(), expires: EXPIRES })
    }

    async fn pull_credentials(&self, image: &str) -> Result<Vec<PullCredentials>> {
        self.requests.lock().images.push(image.to_owned());
        let has_secret = self.pod.spec.as_ref().is_some_and(|spec| spec.image_pull_secrets.is_some());
        let (_, registry, password) = PULL_SECRET;
        Ok(has_secret.then(|| PullCredentials::basic(registry, PULL_USER, password)).into_iter().collect())
    }

    async fn claim(&self, name: &str) -> Result<Claim> {
        Err(missing(Reference::new(ReferenceKind::PersistentVolumeClaim, "default", name)))
    }

    async fn runtime_class(&self) -> Result<Option<Arc<RuntimeClass>>> {
        Ok(None)
    }

    fn node(&self) -> NodeFacts {
        let ips = vec![IpAddr::from(NODE_IP)];
        NodeFacts { name: NODE.to_owned(), ips, ..NodeFacts::default() }
    }

    async fn appeared(&self, _reference: &Reference) {
        std::future::pending::<()>().await;
    }
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), namespace: Some("default".to_owned()), ..ObjectMeta::default() }
}
