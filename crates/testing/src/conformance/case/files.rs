//! Files of volumes. The containers need `cat` and `stat`.

use std::sync::Arc;

use vk_provider::{ContainerRef, PodBundle, resolve::TokenLifetime};

use super::exec::run;
use crate::conformance::{
    caller::Caller,
    context::CaseContext,
    pod_builder::{APP, LOGIN, SETTINGS, TOKEN_FILE, files_folder},
    resolver::FixedResolver,
    result::{Outcome, Stop, ensure},
    subject::Feature,
};

/// The files of every kind of volume are in the container.
pub(crate) async fn every_kind_of_volume_has_its_files(context: &CaseContext) -> Outcome {
    let (caller, app, resolver) = with_files(context).await?;
    let (name, token) = (app.pod.name.to_string(), resolver.current_token());
    for (path, content) in [
        ("map/colour", SETTINGS.2),
        ("secret/password", LOGIN.2),
        ("pod/name", &name),
        ("all/nested/colour", SETTINGS.2),
        ("all/password", LOGIN.2),
        (TOKEN_FILE, &token),
    ] {
        let found = read(&caller, &app, path).await?;
        ensure(
            found == content,
            || format!("the file {path} contains {:?}", shown(&found)),
            "write every file of bundle.resolver.volume(..) before the container starts, byte for byte",
        )?;
    }
    Ok(())
}

/// Files have the modes of the set.
pub(crate) async fn a_file_has_its_mode(context: &CaseContext) -> Outcome {
    let (caller, app, _) = with_files(context).await?;
    for (path, mode) in [
        ("map/colour", "640"),
        ("secret/password", "400"),
        ("pod/name", "600"),
        ("all/nested/colour", "604"),
        ("all/password", "444"),
    ] {
        let file = files_folder(path);
        let (_, found) = run(&caller, &app, &["stat", "-L", "-c", "%a", &file], "").await?;
        ensure(
            found.trim() == mode,
            || format!("the mode of {path} is {:?} and not {mode}", found.trim()),
            "give each file its own mode from the set",
        )?;
    }
    Ok(())
}

/// The file of a renewed token is replaced, unless the provider asked for tokens that last.
pub(crate) async fn a_renewed_token_replaces_its_file(context: &CaseContext) -> Outcome {
    let (caller, app, resolver) = with_files(context).await?;
    match resolver.requests().lifetimes.get("all") {
        Some(TokenLifetime::Specified) => {}
        Some(TokenLifetime::Longest) => {
            let why = "the provider keeps its files and asks for the longest-lived tokens";
            return Err(Stop::DoesNotApply(why.to_owned()));
        }
        None => return Err(Stop::DoesNotApply("the provider reads no files from the resolver".to_owned())),
    }
    // Ends the case here if the output of commands cannot be read.
    read(&caller, &app, TOKEN_FILE).await?;
    resolver.renew_tokens();
    let token = resolver.current_token();
    let advice = "write the later sets of the stream, too, or ask for TokenLifetime::Longest";
    let read = || async {
        let found = read(&caller, &app, TOKEN_FILE).await.map_err(|stop| format!("{stop:?}"))?;
        if found == token { Ok(()) } else { Err(shown(&found)) }
    };
    caller.until("the file has the new token", advice, read).await
}

/// Starts a pod with volumes of every kind.
async fn with_files(context: &CaseContext) -> Outcome<(Caller, ContainerRef, Arc<FixedResolver>)> {
    context.needs(Feature::Files)?;
    let caller = context.open().await?;
    caller.exec()?;
    let pod = context.pod().with_files().build();
    let resolver = Arc::new(FixedResolver::new(&pod));
    let bundle = PodBundle { pod, resolver: Arc::<FixedResolver>::clone(&resolver) };
    let made = caller.create_bundle(&bundle).await?;
    caller.running(&made).await?;
    Ok((caller, made.container(APP), resolver))
}

async fn read(caller: &Caller, container: &ContainerRef, path: &str) -> Outcome<String> {
    let (_, content) = run(caller, container, &["cat", &files_folder(path)], "").await?;
    Ok(content)
}

/// The start of a content, for a message.
fn shown(content: &str) -> String {
    content.chars().take(80).collect()
}
