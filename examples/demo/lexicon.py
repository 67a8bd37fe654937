"""The lexicon of the demo grammar, as plain tables with one lexeme per line.

Columns are separated by blanks.  A cell "=" asks for the regular form and "-" for
none; "_" inside a cell stands for a blank, and "," separates alternatives.

Tenses are named by one letter: r present, p past, e perfect, f future.
"""

# german gender plural english english_plural classes
# The gender "mw" marks a weak masculine, whose oblique singular equals its plural;
# the plural "-" marks a mass noun.
NOUNS = """
mann m männer man men person
frau f frauen woman women person
kind n kinder child children person
junge mw jungen boy = person
mädchen n mädchen girl = person
lehrer m lehrer teacher = person
arzt m ärzte doctor = person
bauer mw bauern farmer = person
bäcker m bäcker baker = person
koch m köche cook = person
könig m könige king = person
königin f königinnen queen = person
nachbar mw nachbarn neighbor = person
freund m freunde friend = person
bruder m brüder brother = person
schwester f schwestern sister = person
vater m väter father = person
mutter f mütter mother = person
sohn m söhne son = person
tochter f töchter daughter = person
onkel m onkel uncle = person
tante f tanten aunt = person
großvater m großväter grandfather = person
großmutter f großmütter grandmother = person
student mw studenten student = person
pilot mw piloten pilot = person
sänger m sänger singer = person
maler m maler painter = person
gärtner m gärtner gardener = person
tourist mw touristen tourist = person
gast m gäste guest = person
kapitän m kapitäne captain = person
kellner m kellner waiter = person
kellnerin f kellnerinnen waitress = person
hund m hunde dog = animal
katze f katzen cat = animal
pferd n pferde horse = animal
kuh f kühe cow = animal
vogel m vögel bird = animal,bird
maus f mäuse mouse mice animal
bär mw bären bear = animal
löwe mw löwen lion = animal
elefant mw elefanten elephant = animal
fuchs m füchse fox = animal
hase mw hasen hare = animal
ziege f ziegen goat = animal
ente f enten duck = animal,bird
huhn n hühner chicken = animal
affe mw affen monkey = animal
wolf m wölfe wolf wolves animal
igel m igel hedgehog = animal
esel m esel donkey = animal
apfel m äpfel apple = food
birne f birnen pear = food
kuchen m kuchen cake = food,baked
brötchen n brötchen roll = food,baked
ei n eier egg = food
kartoffel f kartoffeln potato potatoes food
tomate f tomaten tomato tomatoes food
suppe f suppen soup = food
pilz m pilze mushroom = food
keks m kekse cookie = food,baked
brot n - bread - food,baked
käse m - cheese - food
reis m - rice - food
honig m - honey - food
wasser n - water - drink
milch f - milk - drink
kaffee m - coffee - drink
tee m - tea - drink
saft m - juice - drink
limonade f - lemonade - drink
tisch m tische table = thing,furniture
stuhl m stühle chair = thing,furniture
bett n betten bed = thing,furniture
sofa n sofas sofa = thing,furniture
schrank m schränke cupboard = thing,open,built
lampe f lampen lamp = thing
tür f türen door = open
fenster n fenster window = open
buch n bücher book = thing,text
brief m briefe letter = thing,text
zeitung f zeitungen newspaper = thing,press
bild n bilder picture = thing,art
gedicht n gedichte poem = text
lied n lieder song = text,sung
geschichte f geschichten story stories text,told
witz m witze joke = told
märchen n märchen fairytale = text,told
schlüssel m schlüssel key = thing
uhr f uhren clock = thing
ball m bälle ball = thing,toy
tasche f taschen bag = thing,open
korb m körbe basket = thing
flasche f flaschen bottle = thing,open
glas n gläser glass = thing
tasse f tassen cup = thing
teller m teller plate = thing
messer n messer knife knives thing
löffel m löffel spoon = thing
koffer m koffer suitcase = thing,open
geschenk n geschenke gift = thing
spiegel m spiegel mirror = thing
stein m steine stone = toy
blume f blumen flower = thing,plant
rose f rosen rose = thing,plant
baum m bäume tree = plant,shade
hut m hüte hat = thing,clothing
mantel m mäntel coat = thing,clothing
jacke f jacken jacket = thing,clothing
hemd n hemden shirt = thing,clothing
kleid n kleider dress = thing,clothing
schal m schals scarf scarves thing,clothing
auto n autos car = vehicle,machine
zug m züge train = vehicle,public
bus m busse bus = vehicle,public
schiff n schiffe ship = vehicle,built,public
boot n boote boat = vehicle,built
fahrrad n fahrräder bicycle = vehicle,machine
gitarre f gitarren guitar = thing,instrument
klavier n klaviere piano pianos instrument
geige f geigen violin = thing,instrument
trommel f trommeln drum = thing,instrument
"""

# Nouns as above, then the German and the English preposition that say "be there".
PLACES = """
haus n häuser house = house,built in in
garten m gärten garden = yard in in
schule f schulen school = house,far in in
park m parks park = yard,far in in
wald m wälder forest = yard,far,land in in
stadt f städte city cities yard,far,land in in
dorf n dörfer village = yard,far,land in in
küche f küchen kitchen = room in in
zimmer n zimmer room = room in in
keller m keller cellar = room in in
museum n museen museum = house,far in in
kirche f kirchen church = house,far in in
bibliothek f bibliotheken library libraries house,far in in
hotel n hotels hotel = house,far in in
büro n büros office = room in in
krankenhaus n krankenhäuser hospital = house,far in in
theater n theater theater = house,far in in
laden m läden shop = house,far in in
turm m türme tower = house,built in in
markt m märkte market = site,far auf at
bahnhof m bahnhöfe station = site,far an at
flughafen m flughäfen airport = site,far,land an at
strand m strände beach = site,far,land an on
see m seen lake = site,far,land an at
fluss m flüsse river = site,far an by
insel f inseln island = site,far,land auf on
berg m berge mountain = site,far,land auf on
brücke f brücken bridge = site,built auf on
straße f straßen street = site auf on
"""

# german third_person/past/participle auxiliary english past/participle frames
# subject_classes object_classes manner
#
# A separable prefix ends with "|"; an English particle after "+" follows a pronoun
# object.  Auxiliary: h haben, s sein.  Frames: i intransitive, p with a place,
# d with a direction, t transitive, v with a dative object, g dative and accusative
# ("g" as "give the man a hat", "k" as "explain the way to the man"), c with a
# "dass" clause, q with an "ob" clause, b copula, w weather, o only with a
# prepositional object.  Manner lists the adverb groups that fit; "!" marks a state,
# which takes neither adverbs nor modal verbs.
VERBS = """
schlafen schläft/schlief/geschlafen h sleep slept/slept i person,animal - wa
arbeiten = h work = i person - qaw
lachen = h laugh = i person - l
weinen = h cry = i person - la
tanzen = h dance = i person - qafw
singen =/sang/gesungen h sing sang/sung i,t person sung lfwa
schwimmen =/schwamm/geschwommen s swim swam/swum i person,animal - qa
spielen = h play = i,t person instrument faw
warten = h wait = i person - a
lächeln = h smile = i person - -
träumen = h dream = c person - -
rennen =/rannte/gerannt s run ran/run i,d person,animal room,yard,house q
springen =/sprang/gesprungen s jump = i person,animal - f
fallen fällt/fiel/gefallen s fall fell/fallen i person - -
gehen =/ging/gegangen s go went/gone d person room,yard,house,site qa
laufen läuft/lief/gelaufen s walk = i,d person room,yard,house,site qa
fahren fährt/fuhr/gefahren s drive drove/driven d person land,site qa
reisen = s travel traveled/traveled d person land a
fliegen =/flog/geflogen s fly flew/flown i,d bird yard,site q
kommen =/kam/gekommen s come came/come d person,animal room,yard,house,site q
wohnen = h live = p person - a
sitzen =/saß/gesessen h sit sat/sat p person,animal - a
stehen =/stand/gestanden h stand stood/stood p person,animal - a
bleiben =/blieb/geblieben s stay = p person - a
auf|stehen =/stand/gestanden s get_up got/gotten i person - q
an|kommen =/kam/gekommen s arrive = i person,public - -
ab|fahren fährt/fuhr/gefahren s depart = i person,public - -
zurück|kommen =/kam/gekommen s come_back came/come i person,animal - qa
ein|schlafen schläft/schlief/geschlafen s fall_asleep fell/fallen i person,animal - q
auf|wachen = s wake_up woke/woken i person,animal - -
fern|sehen sieht/sah/gesehen h watch_television = i person - a
ein|kaufen = h go_shopping went/gone i person - a
sehen sieht/sah/gesehen h see saw/seen t,c person,animal person,animal,vehicle -
haben hat/hatte/gehabt h have had/had t person thing,vehicle,animal !
kaufen = h buy bought/bought t,g person thing,vehicle,food,drink g
verkaufen = h sell sold/sold t,g person thing,vehicle,food g
suchen = h look_for = t person person,animal,thing a
finden =/fand/gefunden h find found/found t person,animal thing,animal,food q
essen isst/aß/gegessen h eat ate/eaten t person,animal food qgh
trinken =/trank/getrunken h drink drank/drunk t person,animal drink qgh
lesen liest/las/gelesen h read read/read t person text,press qglh
schreiben =/schrieb/geschrieben h write wrote/written t person text qgh
kochen = h cook = i,t person food qgh
backen backt/backte/gebacken h bake = t person baked qgh
öffnen = h open = t person open qc
schließen =/schloss/geschlossen h close = t person open qcl
tragen trägt/trug/getragen h wear wore/worn t person clothing g
bauen = h build built/built t person built q
malen = h paint = t person art,plant,animal,person qw
zeichnen = h draw drew/drawn t person plant,animal,house,site qw
lieben = h love = t person animal,food,art,text !
kennen =/kannte/gekannt h know knew/known t person person,text !
besuchen = h visit = t person person,far g
fragen = h ask = t,q person person l
treffen trifft/traf/getroffen h meet met/met t person person g
fotografieren = h photograph = t person person,animal,house,site g
waschen wäscht/wusch/gewaschen h wash = t person clothing,machine,animal qc
reparieren = h repair = t person machine,furniture,instrument qc
verlieren =/verlor/verloren h lose lost/lost t person thing -
vergessen vergisst/vergaß/vergessen h forget forgot/forgotten t,c person thing,text -
brauchen = h need = t person thing,vehicle,food !
bekommen =/bekam/bekommen h receive = t person thing,press -
verstehen =/verstand/verstanden h understand understood/understood t person text !
hören = h hear heard/heard t,c person,animal person,animal,sung,instrument -
jagen = h chase = t animal animal q
füttern = h feed fed/fed t person animal g
sammeln = h collect = t person thing gh
verstecken = h hide hid/hidden t person thing,food qh
bestellen = h order = t person food,drink q
retten = h rescue = t person,animal person,animal q
begleiten = h accompany = t person person g
werfen wirft/warf/geworfen h throw threw/thrown t person toy -
an|rufen =/rief/gerufen h call = t person person g
ab|holen = h pick+up = t person person,thing -
ein|laden lädt/lud/geladen h invite = t person person g
mit|bringen =/brachte/gebracht h bring+along brought/brought t person thing,food -
an|ziehen =/zog/gezogen h put+on put/put t person clothing q
auf|räumen = h tidy+up tidied/tidied t person room qa
weg|werfen wirft/warf/geworfen h throw+away threw/thrown t person thing gh
an|sehen sieht/sah/gesehen h look_at = t person person,animal,art,house,site -
mit|nehmen nimmt/nahm/genommen h take+along took/taken t person thing,animal -
aus|wählen = h choose chose/chosen t person thing q
helfen hilft/half/geholfen h help = v person person,animal g
danken = h thank = v person person -
folgen = s follow = v person,animal person,animal qg
antworten = h answer = v person person lq
gehören = h belong_to = v thing,vehicle person !
zu|hören = h listen_to = v person person g
vertrauen = h trust = v person person !
geben gibt/gab/gegeben h give gave/given g person thing,food -
zeigen = h show showed/shown g person thing,vehicle,house,site g
schicken = h send sent/sent g person thing,text -
bringen =/brachte/gebracht h bring brought/brought g person thing,food,drink q
leihen =/lieh/geliehen h lend lent/lent g person thing,vehicle g
erzählen = h tell told/told g person told q
erklären = h explain = k,c person text qw
zurück|geben gibt/gab/gegeben h return = k person thing q
an|bieten =/bot/geboten h offer = g person food,drink -
sagen = h say said/said c person - -
glauben = h believe = c person - !
denken =/dachte/gedacht h think thought/thought c person - -
wissen weiß/wusste/gewusst h know knew/known c,q person - !
hoffen = h hope = c person - -
merken = h notice = c person - -
versprechen verspricht/versprach/versprochen h promise = c person - -
sprechen spricht/sprach/gesprochen h speak spoke/spoken o person - lq
sein ist/war/gewesen s be was/been b person,animal,thing,vehicle,house,text,told - -
regnen = h rain = w - - !
schneien = h snow = w - - !
"""

# german german_preposition case english_preposition classes
PREPOSITIONAL_OBJECTS = """
warten auf acc for person,public
denken an acc of person,animal,far
träumen von dat of animal,far
sprechen mit dat with person
sprechen über acc about person,text,press
lachen über acc about person,told
tanzen mit dat with person
spielen mit dat with person,animal,toy
wohnen bei dat with person
arbeiten für acc for person
singen für acc for person
"""

# german_forms: present ich/du/er/wir, then past ich/du/er/wir
AUXILIARIES = """
haben habe/hast/hat/haben hatte/hattest/hatte/hatten
sein bin/bist/ist/sind war/warst/war/waren
werden werde/wirst/wird/werden -
"""

# german present past english_present english_past
# English "want_to" inflects as a verb; "can", "be_allowed_to" behave as auxiliaries.
MODALS = """
können kann/kannst/kann/können konnte/konntest/konnte/konnten can could
müssen muss/musst/muss/müssen musste/musstest/musste/mussten have_to have_to
wollen will/willst/will/wollen wollte/wolltest/wollte/wollten want_to want_to
dürfen darf/darfst/darf/dürfen durfte/durftest/durfte/durften may be_allowed_to
sollen soll/sollst/soll/sollen - should -
möchten möchte/möchtest/möchte/möchten - would_like_to -
"""

# german[/inflected_stem] english classes
ADJECTIVES = """
klein small person,animal,thing,vehicle,house,room,yard,toy,plant,built
groß big animal,thing,vehicle,house,room,yard,site,plant,toy,built
alt old person,animal,thing,vehicle,house,site,text,told,instrument,built
jung young person,animal
neu new thing,vehicle,house,room,text,instrument,open
schön beautiful animal,thing,house,room,yard,site,plant,text,art,instrument
müde tired person,animal
glücklich happy person
traurig sad person,text,told
hungrig hungry person,animal
freundlich friendly person
klug smart person,animal
faul lazy person,animal
mutig brave person,animal
nett nice person
krank sick person,animal
reich rich person
berühmt famous person,text,art,far
stark strong person,animal
wild wild animal
schnell fast animal,vehicle
gefährlich dangerous animal
rot red thing,vehicle,plant,open
blau blue thing,vehicle,open,toy
grün green thing,vehicle,open
gelb yellow thing,vehicle,plant
schwarz black animal,thing,vehicle,instrument
weiß white animal,thing,house,plant
braun brown animal,furniture,clothing
teuer/teur expensive thing,vehicle,food,instrument
billig cheap thing,vehicle,food
kalt cold drink,food,room
warm warm drink,food,room,clothing
frisch fresh food
lecker tasty food,drink
schwer heavy thing,toy
kaputt broken furniture,machine,instrument,open
sauber clean clothing,room,vehicle
schmutzig dirty clothing,room,vehicle
dunkel/dunkl dark room,house,yard
lang long text,told
interessant interesting text,press,told,art,far
langweilig boring text,press,told
lustig funny text,told,person
"""

# german english tenses
TIMES = """
heute today rpef
jetzt now r
gestern yesterday p
vorgestern the_day_before_yesterday p
morgen tomorrow f
übermorgen the_day_after_tomorrow f
bald soon f
später later f
damals at_that_time p
heute_abend tonight f
jeden_tag every_day rp
jeden_abend every_evening rp
am_morgen in_the_morning rpf
am_abend in_the_evening rpf
am_nachmittag in_the_afternoon rpf
in_der_nacht at_night rp
im_sommer in_summer rpf
im_winter in_winter rpf
im_frühling in_spring rpf
im_herbst in_autumn rpf
am_montag on_monday pf
am_dienstag on_tuesday pf
am_mittwoch on_wednesday pf
am_donnerstag on_thursday pf
am_freitag on_friday pf
am_samstag on_saturday pf
am_sonntag on_sunday pf
letzte_woche last_week p
letztes_jahr last_year p
nächste_woche next_week f
nächstes_jahr next_year f
"""

# german english tenses: these stand before the English verb.
FREQUENCIES = """
oft often rpef
immer always rpef
manchmal sometimes rp
selten rarely rpe
nie never rpef
meistens usually rp
schon already e
endlich finally pef
auch also rpef
noch still r
"""

# german english group
MANNERS = """
schnell quickly q
langsam slowly q
laut loudly l
leise quietly l
vorsichtig carefully c
gern gladly g
heimlich secretly h
allein alone a
fröhlich cheerfully f
gut well w
schlecht badly w
"""

# german english
PLACE_ADVERBS = """
hier here
dort there
draußen outside
drinnen inside
oben upstairs
unten downstairs
zu_hause at_home
"""

# german case english classes: where something is, beside the preposition in PLACES
POSITIONS = """
vor dat in_front_of house,furniture
hinter dat behind house,furniture
neben dat next_to house,furniture
unter dat under furniture,shade
"""

# german case english classes: where someone goes
DIRECTIONS = """
in acc into room,yard,house
zu dat to yard,house,site
aus dat out_of room,yard,house
durch acc through room,yard
von dat from site
"""

# german case english: in whose company something is done
COMPANIONS = """
mit dat with
ohne acc without
"""

NAMES = """
anna paul maria peter lena felix clara emil nora david julia martin sophie simon
"""

# nominative accusative dative agreement subject object
# The accusative "sie" could be "her" or "them", so nothing uses it.
PRONOUNS = """
ich mich mir 1s i me
du dich dir 2s you you
er ihn ihm 3s he him
sie - ihr 3s she her
wir uns uns 1p we us
sie - ihnen 3p they them
"""

# german_stem english_singular english_plural
DETERMINERS = """
der the the
dies this these
jed every -
all - all
viel - many
einig - some
welch which which
ein a -
kein no no
mein my my
dein your your
sein his his
unser our our
"""

# german english tenses: each pair of letters is a main and a subordinate tense
SUBORDINATORS = """
weil because rr,pp,ee,re,er,ff,fr
obwohl although rr,pp,ee,re,er
wenn if rr,fr
während while rr,pp
bevor before rr,pp,fr
als when pp
sobald as_soon_as rr,fr
damit so_that rr
"""

# german english: a comma in the cell is written in both languages.
COORDINATORS = """
und and
oder or
,_aber ,_but
,_deshalb ,_therefore
"""

# german english: those that are not question adverbs are written by the rules.
QUESTION_WORDS = """
wo where
wann when
warum why
wer who
was what
"""

NUMBERS = """
2 zwei two
3 drei three
4 vier four
5 fünf five
6 sechs six
7 sieben seven
8 acht eight
9 neun nine
10 zehn ten
11 elf eleven
12 zwölf twelve
13 dreizehn thirteen
14 vierzehn fourteen
15 fünfzehn fifteen
16 sechzehn sixteen
17 siebzehn seventeen
18 achtzehn eighteen
19 neunzehn nineteen
20 zwanzig twenty
30 dreißig thirty
40 vierzig forty
50 fünfzig fifty
60 sechzig sixty
70 siebzig seventy
80 achtzig eighty
90 neunzig ninety
100 hundert one_hundred
"""
