#!/usr/bin/env bash
# Sets nsop up in a Google Cloud project: service, network access, store, secret, who may call, and a scheduled probe.
#
#   deploy/gcp.sh plan   print every command and run none (what a command would have said stands as a $NAME)
#   deploy/gcp.sh up     run them; again and again does no harm
#   deploy/gcp.sh down   take away what up has made
#
# What you name is yours: it is used, and neither made nor taken away. What you don't name is made, called nsop.
#
#   PROJECT, REGION                   wanted
#   PLATFORM=run|app                  Cloud Run (the default) or App Engine standard
#   EGRESS=direct|connector|none      the way to the store: Direct VPC egress (Cloud Run alone, the default there) or a connector
#   NETWORK=default SUBNET=default    yours
#   CONNECTOR=NAME                    yours, in place of one that is made; CONNECTOR_RANGE=10.8.0.0/28 is an unused range for that
#   STORE=redis|cluster|valkey        a Memorystore; MEMORYSTORE=NAME if there is one, else the smallest is made
#   REDIS_URL=redis://HOST:PORT       any other store; its password is in REDIS_PASSWORD, and is kept in Secret Manager
#   DEVELOPERS=a@example.com,...      who else may call
#   SCHEDULE='*/5 * * * *'            when the probe runs, in UTC; empty: never
#   PROBE=/probe/redis                what it asks for
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "gcp.sh: $*" >&2; exit 2; }

mode=${1-}
case $mode in plan | up | down) ;; *) fail "want plan, up or down" ;; esac
PROJECT=${PROJECT-} REGION=${REGION-} PLATFORM=${PLATFORM:-run} NETWORK=${NETWORK:-default} SUBNET=${SUBNET:-default}
STORE=${STORE-} MEMORYSTORE=${MEMORYSTORE-} CONNECTOR=${CONNECTOR-} CONNECTOR_RANGE=${CONNECTOR_RANGE:-10.8.0.0/28}
REDIS_URL=${REDIS_URL-} REDIS_PASSWORD=${REDIS_PASSWORD-} DEVELOPERS=${DEVELOPERS-}
SCHEDULE=${SCHEDULE-*/5 * * * *} PROBE=${PROBE:-/probe/redis}

[ -n "$PROJECT" ] || fail "PROJECT is not set"
[ -n "$REGION" ] || fail "REGION is not set"
case $PLATFORM in run | app) ;; *) fail "PLATFORM: want run or app" ;; esac
case $STORE in '' | redis | cluster | valkey) ;; *) fail "STORE: want redis, cluster or valkey" ;; esac
[ -z "$STORE" ] || [ -z "$REDIS_URL" ] || fail "STORE and REDIS_URL are both set: want one"
[ -z "$MEMORYSTORE" ] || [ -n "$STORE" ] || fail "MEMORYSTORE: STORE says of which kind it is"
[ "$PLATFORM" = run ] || [ "${EGRESS-}" != direct ] || fail "EGRESS: App Engine wants a connector"
if [ -z "$STORE$REDIS_URL" ]; then
	EGRESS=${EGRESS:-none}
elif [ -n "$CONNECTOR" ] || [ "$PLATFORM" = app ]; then
	EGRESS=${EGRESS:-connector}
else
	EGRESS=${EGRESS:-direct}
fi
case $EGRESS in direct | connector | none) ;; *) fail "EGRESS: want direct, connector or none" ;; esac
case $REDIS_URL in *://*@*) fail "REDIS_URL: the user's password belongs into REDIS_PASSWORD" ;; esac
# The values become parts of commands, of which plan prints lines to be pasted.
for name in PROJECT REGION NETWORK SUBNET MEMORYSTORE CONNECTOR CONNECTOR_RANGE REDIS_URL DEVELOPERS SCHEDULE PROBE; do
	case ${!name} in *[\'\"\\\`\$\|\;\<\>]* | -*) fail "$name: a character that it can't hold" ;; esac
done

export CLOUDSDK_CORE_PROJECT=$PROJECT CLOUDSDK_CORE_DISABLE_PROMPTS=1
runner=nsop@$PROJECT.iam.gserviceaccount.com
scheduler=nsop-scheduler@$PROJECT.iam.gserviceaccount.com
connector=${CONNECTOR:-nsop}
store=${MEMORYSTORE:-nsop}
gcloud_audience=32555940559.apps.googleusercontent.com # that of gcloud auth print-identity-token, for a person

# quoted prints a command as a shell reads it. A $ begins what only up finds out.
quoted() {
	local word line=
	for word; do
		case $word in
		*\$*) word="\"$word\"" ;;
		*[!A-Za-z0-9_./:=@,%+-]*) word="'$word'" ;;
		esac
		line+=${line:+ }$word
	done
	printf '%s' "$line"
}

run() {
	quoted gcloud "$@"
	echo
	[ "$mode" = plan ] || gcloud "$@"
}

# bind gives a role. An account that was just made is not known everywhere at once.
bind() {
	local try
	quoted gcloud "$@"
	echo
	[ "$mode" = up ] || return 0
	for try in 1 2 3 4 5 6; do
		if gcloud "$@" >/dev/null; then return; fi
		[ "$try" = 6 ] || sleep 10
	done
	fail "the role can't be given"
}

# make DESCRIBE... -- CREATE... creates what is not there.
make() {
	local describe=()
	while [ "$1" != -- ]; do describe+=("$1") && shift; done
	shift
	if [ "$mode" = plan ]; then
		echo "$(quoted gcloud "${describe[@]}") >/dev/null 2>&1 || $(quoted gcloud "$@")"
	elif ! gcloud "${describe[@]}" >/dev/null 2>&1; then
		run "$@"
	fi
}

# drop DESCRIBE... -- DELETE... deletes what is there.
drop() {
	local describe=()
	while [ "$1" != -- ]; do describe+=("$1") && shift; done
	shift
	if gcloud "${describe[@]}" >/dev/null 2>&1; then run "$@"; fi
}

# ask NAME COMMAND... gives the variable NAME what the command prints.
ask() {
	local name=$1 value
	shift
	if [ "$mode" = plan ]; then
		echo "$name=\$($(quoted gcloud "$@"))"
		value=\$$name
	else
		value=$(gcloud "$@")
		[ -n "$value" ] || fail "$(quoted gcloud "$@") says nothing"
	fi
	printf -v "$name" %s "$value"
}

# keep SECRET COMMAND... makes what the command prints the latest version of a secret, which is never shown.
keep() {
	local secret=$1 value
	shift
	make secrets describe "$secret" -- secrets create "$secret" --replication-policy=automatic
	if [ "$mode" = plan ]; then
		echo "$(quoted "$@") | gcloud secrets versions add $secret --data-file=-   # unless it is the latest already"
	else
		value=$("$@")
		[ -n "$value" ] || fail "$(quoted "$@") says nothing"
		if [ "$(gcloud secrets versions access latest --secret="$secret" 2>/dev/null || true)" != "$value" ]; then
			echo "$(quoted "$@") | gcloud secrets versions add $secret --data-file=-"
			printf %s "$value" | gcloud secrets versions add "$secret" --data-file=-
		fi
	fi
	bind secrets add-iam-policy-binding "$secret" --member="serviceAccount:$runner" --role=roles/secretmanager.secretAccessor
}

apis() {
	local apis=(secretmanager.googleapis.com cloudscheduler.googleapis.com cloudbuild.googleapis.com)
	case $PLATFORM in
	run) apis+=(run.googleapis.com artifactregistry.googleapis.com) ;;
	app) apis+=(appengine.googleapis.com) ;;
	esac
	[ "$EGRESS" = none ] || apis+=(compute.googleapis.com)
	[ "$EGRESS" != connector ] || apis+=(vpcaccess.googleapis.com)
	case $STORE in
	redis) apis+=(redis.googleapis.com) ;;
	cluster) apis+=(redis.googleapis.com networkconnectivity.googleapis.com serviceconsumermanagement.googleapis.com) ;;
	valkey) apis+=(memorystore.googleapis.com networkconnectivity.googleapis.com serviceconsumermanagement.googleapis.com) ;;
	esac
	run services enable "${apis[@]}"
}

accounts() {
	make iam service-accounts describe "$runner" -- iam service-accounts create nsop --display-name='nsop, what it runs as'
	make iam service-accounts describe "$scheduler" -- iam service-accounts create nsop-scheduler --display-name='nsop, who calls its probe'
}

network() {
	[ "$EGRESS" = connector ] && [ -z "$CONNECTOR" ] || return 0
	make compute networks vpc-access connectors describe nsop --region="$REGION" -- \
		compute networks vpc-access connectors create nsop --region="$REGION" --network="$NETWORK" --range="$CONNECTOR_RANGE" \
		--machine-type=e2-micro --min-instances=2 --max-instances=3
}

# policy SERVICE_CLASS lets a store be reached from the network; there can be one for each class and network.
policy() {
	local list=(network-connectivity service-connection-policies list --region="$REGION"
		--filter="serviceClass=$1 AND network~/networks/$NETWORK\$" --format='value(name)')
	local create=(network-connectivity service-connection-policies create "nsop-$1" --region="$REGION" --service-class="$1"
		--network="$NETWORK" --subnets="https://www.googleapis.com/compute/v1/projects/$PROJECT/regions/$REGION/subnetworks/$SUBNET")
	if [ "$mode" = plan ]; then
		echo "$(quoted gcloud "${list[@]}") | grep -q . || $(quoted gcloud "${create[@]}")"
	elif [ -z "$(gcloud "${list[@]}")" ]; then
		run "${create[@]}"
	fi
}

# redis, cluster and valkey set REDIS_URL, to a Memorystore that is made if it is not yours, and what secrets it uses.
redis() {
	[ -n "$MEMORYSTORE" ] || make redis instances describe nsop --region="$REGION" -- \
		redis instances create nsop --region="$REGION" --network="$NETWORK" --tier=basic --size=1 --redis-version=redis_7_0 --enable-auth
	ask HOST redis instances describe "$store" --region="$REGION" --format='value(host)'
	ask PORT redis instances describe "$store" --region="$REGION" --format='value(port)'
	ask OPTIONS redis instances describe "$store" --region="$REGION" --format='csv[no-heading](authEnabled,transitEncryptionMode)'
	if [ "$mode" = plan ]; then
		OPTIONS=True,DISABLED
		[ -z "$MEMORYSTORE" ] || OPTIONS=True,SERVER_AUTHENTICATION
		echo "# where OPTIONS is $OPTIONS:"
	fi
	case $OPTIONS in True,*)
		keep nsop-redis-password gcloud redis instances get-auth-string "$store" --region="$REGION" --format='value(authString)'
		uses+=(REDIS_PASSWORD=nsop-redis-password)
		;;
	esac
	REDIS_URL=redis://$HOST:$PORT
	case $OPTIONS in *,SERVER_AUTHENTICATION)
		keep nsop-redis-ca gcloud redis instances describe "$store" --region="$REGION" --format='value(serverCaCerts[0].cert)'
		uses+=(REDIS_CA=nsop-redis-ca)
		REDIS_URL="rediss://$HOST:$PORT?ca_env=REDIS_CA"
		;;
	esac
}

cluster() {
	if [ -z "$MEMORYSTORE" ]; then
		policy gcp-memorystore-redis
		make redis clusters describe nsop --region="$REGION" -- \
			redis clusters create nsop --region="$REGION" --network="projects/$PROJECT/global/networks/$NETWORK" \
			--node-type=redis-shared-core-nano --shard-count=3 --replica-count=0 --auth-mode=iam-auth \
			--transit-encryption-mode=server-authentication
	fi
	ask HOST redis clusters describe "$store" --region="$REGION" --format='value(discoveryEndpoints[0].address)'
	keep nsop-redis-ca gcloud redis clusters get-cluster-certificate-authority "$store" --region="$REGION" \
		--format='value(managedServerCa.caCerts[0].certificates[0])'
	uses+=(REDIS_CA=nsop-redis-ca)
	bind projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$runner" --role=roles/redis.dbConnectionUser --condition=None
	REDIS_URL="rediss+cluster://$HOST:6379?auth=iam&ca_env=REDIS_CA"
}

valkey() {
	if [ -z "$MEMORYSTORE" ]; then
		policy gcp-memorystore
		make memorystore instances describe nsop --location="$REGION" -- \
			memorystore instances create nsop --location="$REGION" \
			--endpoints="[{\"connections\":[{\"pscAutoConnection\":{\"network\":\"projects/$PROJECT/global/networks/$NETWORK\",\"projectId\":\"$PROJECT\"}}]}]" \
			--mode=cluster-disabled --node-type=shared-core-nano --shard-count=1 --replica-count=0 \
			--authorization-mode=iam-auth --transit-encryption-mode=server-authentication
	fi
	ask HOST memorystore instances list --location="$REGION" --flatten='endpoints[].connections[]' \
		--filter="name~/instances/$store\$ AND endpoints.connections.pscAutoConnection.connectionType=CONNECTION_TYPE_PRIMARY" \
		--format='value(endpoints.connections.pscAutoConnection.ipAddress)'
	keep nsop-redis-ca gcloud memorystore instances get-certificate-authority "$store" --location="$REGION" \
		--format='value(managedServerCa.caCerts[0].certificates[0])'
	uses+=(REDIS_CA=nsop-redis-ca)
	bind projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$runner" --role=roles/memorystore.dbConnectionUser --condition=None
	REDIS_URL="valkeys://$HOST:6379?auth=iam&ca_env=REDIS_CA"
}

other() {
	[ -n "$REDIS_PASSWORD" ] || return 0
	export REDIS_PASSWORD
	keep nsop-redis-password printenv REDIS_PASSWORD
	uses+=(REDIS_PASSWORD=nsop-redis-password)
}

# cloud_run and app_engine deploy the service and set URL.
cloud_run() {
	local env=AUTH=iam secrets='' use developer options=()
	[ -z "$REDIS_URL" ] || env+="|REDIS_URL=$REDIS_URL"
	for use in "${uses[@]+"${uses[@]}"}"; do secrets+=${secrets:+,}$use:latest; done
	case $EGRESS in
	direct) options+=(--network="$NETWORK" --subnet="$SUBNET" --vpc-egress=private-ranges-only) ;;
	connector) options+=(--vpc-connector="$connector" --vpc-egress=private-ranges-only) ;;
	esac
	[ -z "$secrets" ] || options+=(--set-secrets="$secrets")
	run run deploy nsop --source=. --region="$REGION" --service-account="$runner" --no-allow-unauthenticated \
		--set-env-vars="^|^$env" "${options[@]+"${options[@]}"}" --cpu=1 --memory=512Mi --concurrency=20 --min-instances=0 --max-instances=1 \
		--timeout=300 --no-cpu-throttling --execution-environment=gen2 \
		--startup-probe=httpGet.path=/health,periodSeconds=5,failureThreshold=12
	ask URL run services describe nsop --region="$REGION" --format='value(status.url)'
	bind run services add-iam-policy-binding nsop --region="$REGION" --member="serviceAccount:$scheduler" --role=roles/run.invoker
	for developer in ${DEVELOPERS//,/ }; do
		bind run services add-iam-policy-binding nsop --region="$REGION" --member="user:$developer" --role=roles/run.invoker
	done
}

app_engine() {
	local service=nsop region=$REGION line use audience emails=$scheduler developer file
	case $REGION in us-central1 | europe-west1) region=${REGION%1} ;; esac # App Engine's names for the oldest two
	make app describe -- app create --region="$region"
	# The first service of an application can't have another name.
	if [ "$mode" = up ] && ! gcloud app services describe default >/dev/null 2>&1; then service=default; fi
	ask DOMAIN app describe --format='value(defaultHostname)'
	URL=https://$DOMAIN
	[ $service = default ] || URL=https://nsop-dot-$DOMAIN
	audience=$URL
	for developer in ${DEVELOPERS//,/ }; do
		emails+=" $developer" audience="$URL $gcloud_audience"
	done
	folder=$(mktemp -d)
	file=$folder/app.yaml
	while IFS= read -r line; do
		line=${line%% #*} line=${line%%#*} # comments are for those who fill the file in by hand
		case $line in
		'runtime:'*) printf '%s\nservice: %s\n' "$line" $service ;;
		'vpc_access_connector:'* | '  name: projects/'* | '  egress_setting:'*)
			[ "$EGRESS" = connector ] || continue
			line=${line//PROJECT_ID/$PROJECT} line=${line//REGION/$REGION}
			printf '%s\n' "${line//CONNECTOR/$connector}"
			;;
		'  REDIS_ADDR:'*)
			printf '  %s: "%s"\n' AUTH oidc AUTH_AUDIENCE "$audience" AUTH_EMAILS "$emails"
			[ -z "$REDIS_URL" ] || printf '  REDIS_URL: "%s"\n' "$REDIS_URL"
			for use in "${uses[@]+"${uses[@]}"}"; do printf '  %s: sm://projects/%s/secrets/%s\n' "${use%%=*}" "$PROJECT" "${use#*=}"; done
			;;
		*[!\ ]*) printf '%s\n' "$line" ;;
		esac
	done <app.yaml >"$file"
	if [ "$mode" = plan ]; then
		echo "APP_YAML=\$(mktemp) && cat >\"\$APP_YAML\" <<END"
		cat "$file"
		echo END
		file=\$APP_YAML
	fi
	run app deploy . --appyaml="$file" --service-account="$runner"
}

schedule() {
	[ -n "$SCHEDULE" ] || return 0
	local flags=(--location="$REGION" --schedule="$SCHEDULE" --time-zone=Etc/UTC --uri="$URL$PROBE" --http-method=get
		--oidc-service-account-email="$scheduler" --oidc-token-audience="$URL" --attempt-deadline=60s --max-retry-attempts=0)
	if [ "$mode" = plan ]; then
		echo "$(quoted gcloud scheduler jobs describe nsop --location="$REGION") >/dev/null 2>&1 && JOB=update || JOB=create"
		quoted gcloud scheduler jobs \$JOB http nsop "${flags[@]}"
		echo
	elif gcloud scheduler jobs describe nsop --location="$REGION" >/dev/null 2>&1; then
		run scheduler jobs update http nsop "${flags[@]}"
	else
		run scheduler jobs create http nsop "${flags[@]}"
	fi
}

up() {
	[ "$mode" = up ] || echo "export CLOUDSDK_CORE_PROJECT=$PROJECT CLOUDSDK_CORE_DISABLE_PROMPTS=1"
	apis
	accounts
	network
	uses=()
	"${STORE:-other}"
	case $PLATFORM in run) cloud_run ;; app) app_engine ;; esac
	schedule
	echo "# try:  curl -H \"Authorization: Bearer \$(gcloud auth print-identity-token)\" \"$URL$PROBE?format=text\""
}

down() {
	drop scheduler jobs describe nsop --location="$REGION" -- scheduler jobs delete nsop --location="$REGION"
	case $PLATFORM in
	run) drop run services describe nsop --region="$REGION" -- run services delete nsop --region="$REGION" ;;
	app) drop app services describe nsop -- app services delete nsop ;; # default can't be deleted
	esac
	if [ -z "$MEMORYSTORE" ]; then
		case $STORE in
		redis) drop redis instances describe nsop --region="$REGION" -- redis instances delete nsop --region="$REGION" ;;
		cluster) drop redis clusters describe nsop --region="$REGION" -- redis clusters delete nsop --region="$REGION" ;;
		valkey) drop memorystore instances describe nsop --location="$REGION" -- memorystore instances delete nsop --location="$REGION" ;;
		esac
	fi
	local secret class account
	for class in gcp-memorystore-redis gcp-memorystore; do
		drop network-connectivity service-connection-policies describe nsop-$class --region="$REGION" -- \
			network-connectivity service-connection-policies delete nsop-$class --region="$REGION"
	done
	drop compute networks vpc-access connectors describe nsop --region="$REGION" -- compute networks vpc-access connectors delete nsop --region="$REGION"
	for secret in nsop-redis-password nsop-redis-ca; do
		drop secrets describe $secret -- secrets delete $secret
	done
	for account in "$runner" "$scheduler"; do
		drop iam service-accounts describe "$account" -- iam service-accounts delete "$account"
	done
}

folder=
trap '[ -z "$folder" ] || rm -r "$folder"' EXIT
case $mode in
plan | up) up ;;
down) down ;;
esac
