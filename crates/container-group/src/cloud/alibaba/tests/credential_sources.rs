use std::{collections::HashMap, fs, path::Path};

use secrecy::ExposeSecret as _;
use tempfile::TempDir;

use super::*;

const EXPIRES: &str = "2026-01-02T04:04:05Z";
const OIDC: [(&str, &str); 2] = [
    ("ALIBABA_CLOUD_ROLE_ARN", "acs:ram::1:role/pods"),
    ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "acs:ram::1:oidc-provider/ack"),
];

/// A chain in a home folder of its own, whose token service and metadata server are one fake server.
struct Setup {
    home: TempDir,
    variables: HashMap<String, String>,
    server: FakeServer,
}

impl Setup {
    async fn new(handler: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_str().unwrap().to_owned();
        let variables = HashMap::from([("HOME".to_owned(), path)]);
        Self { home, variables, server: FakeServer::start(handler).await }
    }

    fn variables<'a>(mut self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.variables.extend(variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        self
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.home.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// With a token file and the variables of RRSA.
    fn rrsa(self) -> Self {
        let file = self.home.path().join("token").to_str().unwrap().to_owned();
        self.file("token", "jwt\n")
            .variables(OIDC)
            .variables([("ALIBABA_CLOUD_OIDC_TOKEN_FILE", file.as_str())])
    }

    async fn load(&self, mode: CredentialMode) -> Result<Credentials> {
        self.load_with(mode, |_| ()).await
    }

    async fn load_with(
        &self,
        mode: CredentialMode,
        change: impl FnOnce(&mut CredentialOptions),
    ) -> Result<Credentials> {
        let variables = self.variables.clone();
        let mut options = CredentialOptions {
            mode,
            sts: Some(self.server.endpoint.clone()),
            metadata: Some(self.server.endpoint.clone()),
            ..CredentialOptions::new(Environment::new(move |name| variables.get(name).cloned()))
        };
        change(&mut options);
        CredentialChain::new(options, &http(), clock(), rng()).load().await
    }

    fn lines(&self) -> Vec<String> {
        self.server.received().into_iter().map(|received| received.line).collect()
    }
}

/// The token service and the metadata server of an instance with the role `nodes`.
fn cloud(received: &Received) -> Reply {
    let key = |id: &str| {
        format!(
            r#""AccessKeyId": "{id}", "AccessKeySecret": "{id}-secret", "SecurityToken": "{id}-token", "Expiration": "{EXPIRES}""#
        )
    };
    let needs_session = received.header("x-aliyun-ecs-metadata-token") != "session";
    match received.line.as_str() {
        "PUT /latest/api/token" => Reply::Answer(200, "text/plain", "session".to_owned(), ""),
        line if line.contains("/meta-data/") && needs_session => {
            Reply::Answer(403, "text/plain", String::new(), "")
        }
        "GET /latest/meta-data/ram/security-credentials/" => {
            Reply::Answer(200, "text/plain", "nodes\n".to_owned(), "")
        }
        "GET /latest/meta-data/ram/security-credentials/nodes" => {
            Reply::Answer(200, "text/plain", format!(r#"{{{}, "Code": "Success"}}"#, key("instance")), "")
        }
        line if line.contains("/meta-data/") => Reply::Answer(404, "text/html", "<html>".to_owned(), ""),
        line if line.contains("Action=AssumeRoleWithOIDC") => {
            Reply::json(format!(r#"{{"RequestId": "1", "Credentials": {{{}}}}}"#, key("oidc")))
        }
        _ if received.header("x-acs-action") == "AssumeRole" => {
            Reply::json(format!(r#"{{"RequestId": "1", "Credentials": {{{}}}}}"#, key("role")))
        }
        _ => Reply::refusal(400, "InvalidAction.NotFound", ""),
    }
}

/// A cloud without a metadata server.
fn nothing(_: &Received) -> Reply {
    Reply::Answer(404, "text/plain", String::new(), "")
}

/// Id, secret and token, which belong together.
fn assert_is(credentials: &Credentials, id: &str, token: Option<&str>) {
    assert_eq!(credentials.access_key_id, id);
    let source = match id {
        "config" => "the configuration",
        "env" => "the environment",
        "oidc" => "the role acs:ram::1:role/pods",
        "role" => "the role acs:ram::1:role/r",
        "instance" => "the instance's role nodes",
        _ => "the profile in /",
    };
    assert!(credentials.source.starts_with(source), "{}", credentials.source);
    assert_eq!(credentials.access_key_secret.expose_secret(), format!("{id}-secret"));
    assert_eq!(credentials.security_token.as_ref().map(secrecy::SecretString::expose_secret), token);
}

const ENVIRONMENT: [(&str, &str); 2] =
    [("ALIBABA_CLOUD_ACCESS_KEY_ID", "env"), ("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "env-secret")];
const CLI: &str = r#"{"current": "main", "profiles": [
    {"name": "main", "mode": "AK", "access_key_id": "cli", "access_key_secret": "cli-secret", "region_id": "cn-hangzhou"},
    {"name": "sts", "mode": "StsToken", "access_key_id": "sts", "access_key_secret": "sts-secret", "sts_token": "t"},
    {"name": "role", "mode": "RamRoleArn", "access_key_id": "cli", "access_key_secret": "cli-secret",
     "ram_role_arn": "acs:ram::1:role/r", "ram_session_name": "me", "expired_seconds": 900, "external_id": "x"},
    {"name": "node", "mode": "EcsRamRole", "ram_role_name": "nodes"},
    {"name": "sso", "mode": "CloudSSO"},
    {"name": "half", "mode": "RamRoleArn", "access_key_id": "cli", "access_key_secret": "cli-secret"}
]}"#;
const INI: &str = "[default]\ntype = access_key\naccess_key_id = ini\naccess_key_secret = ini-secret\n
[node]\ntype = ecs_ram_role\nrole_name = nodes\n[other]\ntype = bearer\nbearer_token = s3cr3t\n";

#[tokio::test]
async fn auto_takes_the_first_that_is_configured() {
    let mut setup = Setup::new(cloud).await.rrsa().variables(ENVIRONMENT);
    setup = setup.file(".aliyun/config.json", CLI).file(".alibabacloud/credentials.ini", INI);
    let given = setup.load_with(CredentialMode::Auto, |options| {
        options.access_key = Some(Credentials::new("config", "config-secret"));
    });
    assert_is(&given.await.unwrap(), "config", None);
    assert_is(&setup.load(CredentialMode::Auto).await.unwrap(), "env", None);
    setup.variables.remove("ALIBABA_CLOUD_ACCESS_KEY_ID");
    assert_is(&setup.load(CredentialMode::Auto).await.unwrap(), "oidc", Some("oidc-token"));
    setup.variables.remove("ALIBABA_CLOUD_OIDC_TOKEN_FILE");
    setup.variables.remove("ALIBABA_CLOUD_OIDC_PROVIDER_ARN");
    assert_is(&setup.load(CredentialMode::Auto).await.unwrap(), "cli", None);
    fs::remove_file(setup.home.path().join(".aliyun/config.json")).unwrap();
    assert_is(&setup.load(CredentialMode::Auto).await.unwrap(), "ini", None);
    fs::remove_file(setup.home.path().join(".alibabacloud/credentials.ini")).unwrap();
    assert_is(&setup.load(CredentialMode::Auto).await.unwrap(), "instance", Some("instance-token"));
}

#[tokio::test]
async fn without_any_source_the_error_says_what_is_missing_everywhere() {
    let setup = Setup::new(nothing).await;
    let error = setup.load(CredentialMode::Auto).await.unwrap_err();
    assert_eq!(*error.class(), Class::Auth);
    let text = error.to_string();
    for part in [
        "ALIBABA_CLOUD_ACCESS_KEY_ID is not set",
        "ALIBABA_CLOUD_OIDC_TOKEN_FILE (RRSA) is not set",
        "no profile in ~/.aliyun/config.json",
        "the instance has no RAM role",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_source_that_is_configured_and_fails_is_not_replaced_by_another_identity() {
    let setup = Setup::new(cloud).await.rrsa().file(".aliyun/config.json", CLI);
    fs::remove_file(setup.home.path().join("token")).unwrap();
    let error = setup.load(CredentialMode::Auto).await.unwrap_err().to_string();
    assert!(error.contains("cannot read the token file"), "{error}");

    let setup = Setup::new(cloud).await.variables([OIDC[1]]);
    let error = setup.load(CredentialMode::Auto).await.unwrap_err().to_string();
    assert!(error.contains("ALIBABA_CLOUD_ROLE_ARN is not set"), "{error}");
    assert!(setup.lines().is_empty());
}

#[tokio::test]
async fn the_environment_may_hold_temporary_credentials() {
    let setup =
        Setup::new(nothing).await.variables(ENVIRONMENT).variables([("ALIBABA_CLOUD_SECURITY_TOKEN", "t\n")]);
    assert_is(&setup.load(CredentialMode::Static).await.unwrap(), "env", Some("t"));
}

#[tokio::test]
async fn rrsa_exchanges_the_token_file_each_time() {
    let setup = Setup::new(cloud).await.rrsa();
    let credentials = setup.load(CredentialMode::Oidc).await.unwrap();
    assert_is(&credentials, "oidc", Some("oidc-token"));
    assert_eq!(credentials.expires, Some(EXPIRES.parse().unwrap()));
    fs::write(setup.home.path().join("token"), "newer").unwrap();
    setup.load(CredentialMode::Oidc).await.unwrap();
    let [first, second] = &setup.server.received()[..] else { panic!("two requests") };
    assert!(first.line.starts_with("POST /?Action=AssumeRoleWithOIDC&Format=JSON&"), "{}", first.line);
    assert_eq!(
        first.body,
        "DurationSeconds=3600&OIDCProviderArn=acs%3Aram%3A%3A1%3Aoidc-provider%2Fack&OIDCToken=jwt&\
         RoleArn=acs%3Aram%3A%3A1%3Arole%2Fpods&RoleSessionName=virtual-kubelet"
    );
    assert!(second.body.contains("OIDCToken=newer"), "{}", second.body);
    assert_eq!(first.header("authorization"), "", "the token is all that is needed");
}

#[tokio::test]
async fn a_refusal_of_the_token_service_is_reported_without_the_token() {
    let said = "the token jwt-s3cr3t-part is not valid";
    let setup =
        Setup::new(move |_| Reply::refusal(400, "AuthenticationFail.OIDCToken.Invalid", said)).await.rrsa();
    let setup = setup.file("token", "jwt-s3cr3t-part");
    let error = setup.load(CredentialMode::Oidc).await.unwrap_err();
    assert_eq!(*error.class(), Class::Auth);
    let text = error.to_string();
    assert!(text.contains("AssumeRoleWithOIDC: the token *** is not valid"), "{text}");
}

#[tokio::test]
async fn the_role_of_the_instance_is_found_and_read_in_a_session() {
    let setup = Setup::new(cloud).await;
    assert_is(&setup.load(CredentialMode::RamRole).await.unwrap(), "instance", Some("instance-token"));
    let received = setup.server.received();
    assert_eq!(received.len(), 3);
    assert_eq!(received[0].header("x-aliyun-ecs-metadata-token-ttl-seconds"), "21600");
}

#[tokio::test]
async fn a_named_role_of_the_instance_is_not_looked_for() {
    let setup = Setup::new(cloud).await.variables([("ALIBABA_CLOUD_ECS_METADATA", "nodes")]);
    setup.load(CredentialMode::RamRole).await.unwrap();
    assert_eq!(setup.lines().len(), 2);
    let missing =
        setup.load_with(CredentialMode::RamRole, |options| options.role_name = Some("../no".to_owned()));
    let error = missing.await.unwrap_err().to_string();
    assert!(error.contains("the instance has no RAM role ../no: attach it"), "{error}");
}

#[tokio::test]
async fn an_older_metadata_server_is_read_without_a_session_unless_that_is_forbidden() {
    let older = |received: &Received| {
        if received.line.starts_with("PUT ") {
            return Reply::Answer(404, "text/plain", String::new(), "");
        }
        let mut received = received.clone();
        received.headers.insert("x-aliyun-ecs-metadata-token".to_owned(), "session".to_owned());
        cloud(&received)
    };
    let setup = Setup::new(older).await;
    assert_is(&setup.load(CredentialMode::RamRole).await.unwrap(), "instance", Some("instance-token"));
    let setup = setup.variables([("ALIBABA_CLOUD_IMDSV1_DISABLED", "true")]);
    let error = setup.load(CredentialMode::RamRole).await.unwrap_err().to_string();
    assert!(error.contains("the metadata server answered with status 404"), "{error}");
}

#[tokio::test]
async fn a_metadata_server_that_has_no_credentials_now_is_a_failure_that_passes() {
    let failing = |received: &Received| match received.line.as_str() {
        "GET /latest/meta-data/ram/security-credentials/nodes" => {
            Reply::Answer(200, "text/plain", r#"{"Code": "Failed"}"#.to_owned(), "")
        }
        _ => cloud(received),
    };
    let error = Setup::new(failing).await.load(CredentialMode::RamRole).await.unwrap_err();
    assert_eq!((error.class(), error.code()), (&Class::Transient, Some("Failed")));
}

#[tokio::test]
async fn a_disabled_metadata_server_is_not_asked() {
    let setup = Setup::new(cloud).await.variables([("ALIBABA_CLOUD_ECS_METADATA_DISABLED", "True")]);
    let error = setup.load(CredentialMode::Auto).await.unwrap_err().to_string();
    assert!(error.contains("ALIBABA_CLOUD_ECS_METADATA_DISABLED"), "{error}");
    assert!(setup.lines().is_empty());
}

#[tokio::test]
async fn a_profile_of_the_command_line_is_chosen_by_name() {
    let mut setup = Setup::new(cloud).await.file(".aliyun/config.json", CLI);
    for (name, id, token) in [
        ("main", "cli", None),
        ("sts", "sts", Some("t")),
        ("role", "role", Some("role-token")),
        ("node", "instance", Some("instance-token")),
    ] {
        setup = setup.variables([("ALIBABA_CLOUD_PROFILE", name)]);
        assert_is(&setup.load(CredentialMode::Profile).await.unwrap(), id, token);
    }
    let assumed = &setup.server.received()[0];
    assert_eq!(
        assumed.line,
        "POST /?DurationSeconds=900&ExternalId=x&RoleArn=acs%3Aram%3A%3A1%3Arole%2Fr&RoleSessionName=me"
    );
    assert!(assumed.header("authorization").contains("Credential=cli,"));
    let main = setup.load_with(CredentialMode::Profile, |options| options.profile = Some("main".to_owned()));
    assert_is(&main.await.unwrap(), "cli", None);
}

#[tokio::test]
async fn a_profile_of_the_sdks_is_chosen_by_name() {
    let setup = Setup::new(cloud).await.file("elsewhere", INI);
    let file = setup.home.path().join("elsewhere").to_str().unwrap().to_owned();
    let setup = setup.variables([("ALIBABA_CLOUD_CREDENTIALS_FILE", file.as_str())]);
    assert_is(&setup.load(CredentialMode::Profile).await.unwrap(), "ini", None);
    let setup = setup.variables([("ALIBABA_CLOUD_PROFILE", "node")]);
    assert_is(&setup.load(CredentialMode::Profile).await.unwrap(), "instance", Some("instance-token"));
}

#[tokio::test]
async fn profiles_that_cannot_be_used_are_errors_that_name_file_and_reason() {
    let broken = r#"{"profiles": [{"name": 1, "access_key_secret": "s3cr3t"}]}"#;
    for (path, text, name, why) in [
        (".aliyun/config.json", CLI, "sso", "mode CloudSSO, which is not supported"),
        (".aliyun/config.json", CLI, "half", "without the ARN of a role"),
        (".aliyun/config.json", broken, "main", "is not a valid configuration (line 1"),
        (".alibabacloud/credentials.ini", INI, "other", "unknown type"),
        (".alibabacloud/credentials.ini", "[a]\ntype = access_key\n", "a", "without an access key"),
    ] {
        let setup = Setup::new(nothing).await.file(path, text).variables([("ALIBABA_CLOUD_PROFILE", name)]);
        let error = setup.load(CredentialMode::Profile).await.unwrap_err().to_string();
        let file = setup.home.path().join(Path::new(path));
        assert!(error.contains(why) && error.contains(file.to_str().unwrap()), "{name}: {error}");
        assert!(!error.contains("s3cr3t"), "{error}");
    }
    let setup = Setup::new(nothing).await.file(".aliyun/config.json", CLI);
    let missing = setup.load_with(CredentialMode::Profile, |options| options.profile = Some("no".to_owned()));
    let error = missing.await.unwrap_err().to_string();
    assert!(error.contains("there is no profile \"no\""), "{error}");
}
